"""The added time of an evaluation's batch, and of a call without a loader, in large programs.

A program with large libraries has thousands of classes of modules. Whatever is done to their base
class costs time in proportion to their number, so the same is measured with several numbers of
classes alive, in one process, with the tool on and off in turn.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
import tempfile
from pathlib import Path

from . import torch_cost
from .torch_tables import OURS, Sizes, Subject
from .worker_processes import Workers

CLASSES = (400, 1_500, 3_400)
"""Those of torch alone; with transformers and timm; in a program that imports more."""
DOINGS = {"evaluation": "a batch of an evaluation", "calls": "a call without a loader"}
BAR_US = 60.0


def section(processes: Workers, sizes: Sizes) -> None:
    """Measure and print it; without torch there is nothing to measure."""
    if importlib.util.find_spec("torch") is None:
        return
    print("  without training: µs added, thread cpu, medians of", end=" ")
    print(f"{sizes.untrained_rounds} rounds of {sizes.steps:,}")
    work = {"width": 64, "batch": 8, "steps": sizes.steps}
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        subject = Subject(OURS, OURS)
        worker = torch_cost.Worker(
            processes, subject, {"work": work}, Path(sys.executable), Path(folder)
        )
        try:
            for number in CLASSES:
                worker.do("classes", number=number)
                for doing, title in DOINGS.items():
                    added, bare = _added(worker, doing, sizes.untrained_rounds)
                    print(f"  {line(f'{number:,} classes, {title}', added, bare)}", flush=True)
        finally:
            worker.end()


def _added(worker: torch_cost.Worker, doing: str, rounds: int) -> tuple[float, float]:
    """The median of what the tool adds, and the median without it, µs."""
    order = random.Random(doing)
    added, bare = [], []
    for _ in range(rounds):
        found = {}
        for is_on in order.sample((False, True), 2):
            if is_on:
                worker.do("install")
            found[is_on] = worker.do("block", epochs=1, doing=doing)["thread"]
            if is_on:
                worker.do("close")
        added.append(found[True] - found[False])
        bare.append(found[False])
    return statistics.median(added), statistics.median(bare)


def line(title: str, added: float, bare: float) -> str:
    """A row; it ends in ABOVE if the cost is above the bar."""
    above = ", ABOVE" if added > BAR_US else ""
    return f"{title:<44}{bare:8.1f} {added:+8.1f} (bar {BAR_US:g}{above})"
