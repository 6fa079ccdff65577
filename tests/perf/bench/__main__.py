"""`make bench`: what everything costs, as ratios within one run.

Medians of repeated blocks. A section's name runs that section alone. `--big` converts spools of
1 GB and of 4 GB as well, for their memory; and reports 5 million spans in columnar tables.
"""

from __future__ import annotations

import argparse
import importlib

MODULES = {
    "json": "json_cost", "sdk": "sdk", "launcher": "launcher_cost", "trainers": "trainer_cost",
    "sampling": "sampling_cost", "tracing": "tracing_cost",
    "snapshots": "snapshots", "digests": "digest_cost", "stormlog": "stormlog_cost",
    "report": "report_cost", "figures": "figures_cost", "diagnose": "diagnose_cost",
    "traceml": "traceml_cost", "dgrr": "dgrr_cost",
    "columns": "columns_cost", "engines": "engines_cost", "sklearn": "sklearn_cost",
    "storage": "storage_cost", "targets": "targets_cost", "collector": "collector_load",
}  # fmt: skip
"""By the section: its module, which has `section` and the sizes `TINY`."""
SECTIONS = (
    "conversion", "json", "shapes", "sdk", "launcher", "torch", "trainers", "tracing", "sampling",
    "snapshots", "digests", "stormlog", "report", "figures", "diagnose", "traceml", "dgrr",
    "columns", "engines", "sklearn", "storage", "targets", "collector",
)  # fmt: skip
"""In the order in which they run."""


def run(section: str, *, is_tiny: bool, is_big: bool, base: str | None = None) -> None:
    """Run a section; import only what it needs."""
    if section in ("conversion", "shapes"):
        from . import conversion_cost

        if section == "conversion":
            conversion_cost.conversion(is_big)
        else:
            conversion_cost.shapes()
    elif section == "torch":
        from . import torch_cost, torch_tables, torch_untrained
        from .worker_processes import Workers

        sizes = torch_tables.TINY if is_tiny else torch_tables.Sizes()
        with Workers(torch_cost.PROGRAM, sizes.is_forked, torch_cost.IMPORTED) as processes:
            torch_cost.section(processes, sizes)
            torch_untrained.section(processes, sizes)
    else:
        module = importlib.import_module(f".{MODULES[section]}", __package__)
        sizes = module.TINY if is_tiny else type(module.TINY)()
        if section == "report":
            module.section(sizes, base, is_big=is_big)
        else:
            module.section(sizes)


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", nargs="?", choices=SECTIONS, help="this one alone")
    parser.add_argument("--big", action="store_true", help="also the largest sizes")
    parser.add_argument("--tiny", action="store_true", help="all but conversion, to see it run")
    parser.add_argument("--base", help="the commit with which `report` is compared")
    arguments = parser.parse_args()
    if arguments.base is not None and arguments.section != "report":
        parser.error("--base is for the section `report` alone")
    for section in SECTIONS if arguments.section is None else (arguments.section,):
        run(section, is_tiny=arguments.tiny, is_big=arguments.big, base=arguments.base)


if __name__ == "__main__":
    main()
