"""The SDK's section of `make bench`: hot path, flush side, memory, pauses, switches.

It runs in a process and a directory of its own, so that a session is opened by it alone and no
setting of the caller's counts: `python -m tests.perf.bench sdk`.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    items: int = 20_000
    """Scopes, marks or iterations of a block."""
    blocks: int = 9
    pause_seconds: float = 3.0
    """How long the training thread is watched, each time."""
    pause_rounds: int = 3


TINY = Sizes(200, 2, 0.2, 1)
"""Enough to see that everything runs."""


def environment(folder: str) -> dict[str, str]:
    """The process's environment, without what would configure either SDK."""
    taken = ("OTEL_", "CIRRON_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(taken)}
    # The recorder's environments stay where they are, wherever HOME is.
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return kept | {
        "HOME": folder,
        "CIRRON_QUIET": "true",
        "XDG_CACHE_HOME": cache,
        "PYTHONPATH": str(ROOT),
    }


def section(sizes: Sizes = Sizes()) -> None:
    """Run it and let it print. Raises CalledProcessError where it fails."""
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        subprocess.run(
            [sys.executable, "-u", "-m", "tests.perf.bench.sdk", *map(str, astuple(sizes))],
            cwd=folder,
            env=environment(folder),
            check=True,
        )


def main(sizes: Sizes) -> None:
    """The section itself, in the process that `section` has made."""
    from . import (
        neighbour,
        sdk_flush,
        sdk_hot,
        sdk_pause,
        sdk_switches,
    )

    python = f"{platform.python_implementation()} {platform.python_version()}"
    load = os.getloadavg()[0]
    print(f"SDK, {python}, {os.cpu_count()} cores, load {load:.1f} before it starts")
    cirron = neighbour.start()
    sdk_hot.hot_path(sizes.items, sizes.blocks, cirron)
    if cirron is not None:
        cirron.shutdown()
    sdk_flush.flush_side(sizes.items, sizes.blocks)
    sdk_flush.allocation(sizes.items)
    sdk_switches.switches(sizes.items, sizes.blocks)
    sdk_pause.pauses(sizes.pause_seconds, sizes.pause_rounds, cirron is not None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("items", int), ("blocks", int), ("seconds", float), ("rounds", int)):
        parser.add_argument(name, type=kind)
    given = parser.parse_args()
    main(Sizes(given.items, given.blocks, given.seconds, given.rounds))
