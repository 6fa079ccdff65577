"""The launcher's section of `make bench`: what `cirron-otel run` costs while a job runs, and after.

A step beside the launcher, which reads the job's batches, is compared with a step while the
launcher is stopped: pairs of blocks, in an order shuffled anew for each pair. The bar is for the
CPU time of a step, because other programs may use the machine. The launcher's last words follow the
end of a job of many small steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import sdk
from .launcher_worker import cpu_s
from .measure import COMMAND

PROGRAM = Path(__file__).with_name("launcher_worker.py")
BAR_STEP, BAR_END_S = 1.01, 3.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    steps: int = 1000
    """Of a block; about two seconds, in which the launcher reads twice."""
    pairs: int = 20
    last_steps: int = 100_000
    """Of the job whose end is measured."""
    pause_s: float = 0.03
    """After each hundred of them; the job takes about 40 seconds."""
    ends: int = 3


TINY = Sizes(100, 2, 200, 0.0, 1)
"""Enough to see that everything runs."""


def section(sizes: Sizes) -> None:
    """Measure and print."""
    print("launcher: cirron-otel run, which reads the batches of a job while it runs")
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        _beside(sizes, Path(folder) / "beside")
        ends = [_end(sizes, Path(folder) / f"end-{number}") for number in range(sizes.ends)]
    wall, cpu = (statistics.median(figures) for figures in zip(*ends, strict=True))
    print(
        f"  last words after {sizes.last_steps:,} steps: {wall:.2f} s, CPU of the launcher"
        f" {cpu:.2f} s (bar {BAR_END_S:g} s{', ABOVE' if wall > BAR_END_S else ''})"
    )


def _beside(sizes: Sizes, folder: Path) -> None:
    blocks, _, _ = _run(folder, "beside", sizes.steps, sizes.pairs)
    beside = [each for each in blocks if each["is_beside"]]
    alone = [each for each in blocks if not each["is_beside"]]
    step = statistics.median(each["cpu"] for each in alone) / sizes.steps * 1e6
    launcher = sum(each["launcher"] for each in beside) / len(beside) / sizes.steps * 1e6
    print(f"  {'a step while the launcher is stopped':<46}{step:9.1f} µs of CPU time")
    print(f"  {'CPU of the launcher for a step of the others':<46}{launcher:9.1f} µs")
    pairs = list(zip(beside, alone, strict=True))
    wall = statistics.median(one["wall"] / other["wall"] for one, other in pairs)
    ratios = [one["cpu"] / other["cpu"] for one, other in pairs]
    ratio = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"  beside it / while it is stopped: {ratio:.4f} ± {(high - low) / 2:.4f}, wall {wall:.4f}"
        f" (bar {BAR_STEP}{', ABOVE' if ratio > BAR_STEP else ''})"
    )


def _end(sizes: Sizes, folder: Path) -> tuple[float, float]:
    """Return the seconds from a job's end to the launcher's, and its CPU time in them."""
    job, ended, cpu = _run(folder, "end", sizes.last_steps, sizes.pause_s)
    return ended - job["ended"], cpu - job["launcher"]


def _run(folder: Path, *arguments: object) -> tuple[Any, float, float]:
    """Run a job; return its figures, the time of the launcher's end, and its CPU time."""
    folder.mkdir()
    figures = folder / "figures.json"
    command = [COMMAND, "run", "--", sys.executable, PROGRAM, *map(str, arguments), figures]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=sdk.environment(str(folder)), stdout=log, stderr=log
        )
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        ended, cpu = time.time(), cpu_s(process.pid)
        code = process.wait()
    text = (folder / "log").read_text()
    if code or "of this run)" not in text:
        raise AssertionError(f"the job ended with {code}:\n{text[-2000:]}")
    return json.loads(figures.read_bytes()), ended, cpu
