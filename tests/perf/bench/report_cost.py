"""The cost of the command `report`, its start included, also of an earlier commit in turns.

`python -m tests.perf.bench report --base COMMIT` installs the wheels of both into environments of
their own. With `--big`, DuckDB also reports 5 million spans in columnar tables.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kit.compare.versions import checked_out, environment
from tests.kit.wheels import ROOT

from .engines_cost import write
from .measure import COMMAND, Run, run

CPU_BAR_S = 1.0
"""The maximum CPU time in seconds for the smallest spool, including the start of the command."""


@dataclass(frozen=True)
class ReportSizes:
    """How much is measured."""

    spans: tuple[int, ...] = (20_000, 300_000)
    blocks: int = 5
    in_tables: int = 5_000_000
    """The spans in columnar tables, of `--big`."""
    blocks_in_tables: int = 3


TINY = ReportSizes((2_000, 4_000), 1, 6_000, 1)
"""Enough to see that everything runs."""


def section(
    sizes: ReportSizes = ReportSizes(), base: str | None = None, *, is_big: bool = False
) -> None:
    """Print the CPU time and the peak memory, and the ratios to the commit `base`."""
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as name:
        folder = Path(name)
        commands = {"this tree": COMMAND}
        if base is not None:
            commands = {
                "base": _command("base", checked_out(base, folder / "source"), folder),
                "this tree": _command("head", ROOT, folder),
            }
        print("report of a spool, as a command")
        for number, wanted in enumerate(sizes.spans):
            source = folder / str(wanted)
            spans = write(source, wanted)
            runs = _measured(commands, [source], sizes.blocks)
            _printed(runs, spans, is_smallest=not number)
        if is_big:
            spans = write(folder / "large", sizes.in_tables)
            tables = f"parquet:{folder / 'columns'}"
            run([commands["this tree"], "convert", folder / "large", tables])
            shutil.rmtree(folder / "large")
            print("report of columnar tables with DuckDB, as a command")
            source_of = [tables, "--engine", "duckdb"]
            runs = _measured(commands, source_of, sizes.blocks_in_tables)
            _printed(runs, spans, is_smallest=False)


def _command(side: str, source: Path, place: Path) -> Path:
    return environment(side, source, place).python.with_name("cirron-otel")


def _measured(
    commands: dict[str, Path], source: Sequence[str | Path], blocks: int
) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for number in range(blocks):
        for name, command in [*commands.items()][:: 1 if number % 2 else -1]:
            runs[name].append(run([command, "report", *source, "--json"]))
    return runs


def _printed(runs: dict[str, list[Run]], spans: int, *, is_smallest: bool) -> None:
    for name, some in runs.items():
        wall, cpu = _median(some, "wall_s"), _median(some, "cpu_s")
        bar = f" (bar {CPU_BAR_S:g} s{', ABOVE' if cpu > CPU_BAR_S else ''})" if is_smallest else ""
        peak = max(each.peak for each in some) / 1e6
        print(
            f"  {spans:>9,} spans, {name:<9} {wall:7.2f} s, CPU {cpu:7.2f} s,"
            f" {cpu / spans * 1e6:6.1f} µs a span, {peak:5.0f} MB{bar}",
            flush=True,
        )
    if "base" in runs:
        pairs = zip(runs["this tree"], runs["base"], strict=True)
        ratio = statistics.median(ours.cpu_s / theirs.cpu_s for ours, theirs in pairs)
        print(f"  {spans:>9,} spans, CPU of this tree / base {ratio:6.2f} x", flush=True)


def _median(runs: Sequence[Run], figure: str) -> float:
    return statistics.median(getattr(each, figure) for each in runs)
