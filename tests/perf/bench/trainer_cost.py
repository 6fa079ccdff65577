"""The trainers section of `make bench`: what a trainer's step pays for being traced.

The same training runs with a trainer and as a written-out loop, each in processes of its own, one
for each tool. A process trains run after run, with its tool on and off in turn; the pair of a round
gives what the tool adds. All processes are alive at once and train in an order shuffled anew each
round. Nothing is flushed while a run is timed, and the sampler is off: `sampling` measures it.

A trainer's run with torch's hooks alone separates the two parts of its cost: the trainer's own
hooks, and torch's hooks between a trainer's code, which has replaced them in the CPU's caches.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.environments import EnvironmentUnavailableError
from tests.sdk.instrumentation.torch.peers import CIRRON_SDK

from . import sdk
from .worker_processes import Workers

PROGRAM = Path(__file__).with_name("trainer_worker.py")
TRAINERS = {"transformers": "a Trainer of transformers", "lightning": "a Trainer of Lightning"}
IMPORTED = {"transformers": "transformers.trainer", "lightning": "lightning"}
"""The module that takes most of the import of each."""
WRITTEN_OUT, OURS, NEIGHBOUR = "written out", "cirron-otel", "cirron-sdk"
TORCH_ALONE = "torch's hooks alone"
MODULES = {OURS: "cirron_otel", TORCH_ALONE: "cirron_otel", NEIGHBOUR: "cirron"}
OPTIONS: dict[str, Any] = {"flush_interval": 3600.0}

BAR_WRITTEN_OUT, BAR_NEIGHBOUR = 1.2, 0.35


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    steps: int = 300
    """Of a run."""
    rounds: int = 30
    is_forked: bool = False
    """Whether the workers are forks of one process for each interpreter: see worker_processes."""


TINY = Sizes(5, 1, is_forked=True)
"""Enough to see that everything runs."""

Added = list[float]
"""µs added a step, one figure a round."""


class Worker:
    """A process of trainer_worker.py."""

    def __init__(
        self, processes: Workers, tool: str, program: str, python: Path, folder: Path
    ) -> None:
        self.tool, self.program = tool, program
        self.lost = 0
        """Records that the tool dropped, and errors, as it counts them itself."""
        self.added: Added = []
        self.bare: list[float] = []
        self._log = folder / "log"
        environment = sdk.environment(str(folder)) | {
            "CIRRON_SAMPLE_INTERVAL": "none",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        }
        if tool == NEIGHBOUR:
            del environment["PYTHONPATH"]
        options = OPTIONS | ({"frameworks": ["torch"]} if tool == TORCH_ALONE else {})
        arguments = [MODULES[tool], program, json.dumps(options)]
        self._process = processes.start(python, arguments, folder, environment)

    def round(self, order: random.Random, steps: int) -> None:
        """Train with the tool and without it, in either order."""
        figures = {is_on: self._run(is_on, steps) for is_on in order.sample((False, True), 2)}
        self.bare.append(figures[False])
        self.added.append(figures[True] - figures[False])

    def _run(self, is_traced: bool, steps: int) -> float:
        """Return the CPU time of a step. Raises RuntimeError if the process has ended."""
        line = self._process.ask(json.dumps({"traced": is_traced, "steps": steps}))
        if not line:
            log = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
            raise RuntimeError(f"{self.tool}, {self.program} did not answer; its log:\n{log}")
        answer: dict[str, Any] = json.loads(line)
        self.lost += int(answer["lost"])
        return float(answer["thread"])

    def end(self) -> None:
        """Let the process end, or kill it after a minute."""
        self._process.end()


def measure(
    processes: Workers, trainer: str, sizes: Sizes, pythons: dict[str, Path]
) -> list[Worker]:
    """Return the workers of the trainer and of the written-out loop, with their figures."""
    order = random.Random(trainer)
    with contextlib.ExitStack() as stack:
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cirron-otel-bench-")))
        workers = []
        for tool, python in pythons.items():
            for program in (trainer,) if tool == TORCH_ALONE else (trainer, WRITTEN_OUT):
                folder = parent / f"{tool} {program}"
                folder.mkdir()
                workers.append(Worker(processes, tool, program, python, folder))
                stack.callback(workers[-1].end)
        for number in range(sizes.rounds + 1):
            for worker in order.sample(workers, len(workers)):
                worker.round(order, sizes.steps)
                if number == 0:  # to warm it up
                    worker.bare, worker.added = [], []
    return workers


def report(trainer: str, sizes: Sizes, workers: list[Worker]) -> None:
    """Print the figures of one trainer."""
    print(f"  {TRAINERS[trainer]}: µs added a step, thread cpu, medians of", end=" ")
    print(f"{sizes.rounds} rounds of {sizes.steps:,} steps")
    for worker in workers:
        bare, added = statistics.median(worker.bare), statistics.median(worker.added)
        label = f"{worker.tool}, {worker.program}"
        print(f"  {label:<34}{bare:10.1f} {added:+10.1f}   ± {_spread(worker.added):.1f}")
    found = {(each.tool, each.program): statistics.median(each.added) for each in workers}
    cost = found[OURS, trainer]
    floor = found[OURS, WRITTEN_OUT]
    print(f"  {verdict('written out', cost, floor, BAR_WRITTEN_OUT)}")
    alone = found[TORCH_ALONE, trainer]
    print(f"  {TORCH_ALONE} / written out: {alone / floor if floor else float('inf'):.3f}")
    if (NEIGHBOUR, trainer) in found:
        print(f"  {verdict(NEIGHBOUR, cost, found[NEIGHBOUR, trainer], BAR_NEIGHBOUR)}")
    lost = sum(worker.lost for worker in workers if worker.tool != NEIGHBOUR)
    print(f"  lost by {OURS}: {lost or 'nothing'}", flush=True)


def verdict(beside: str, cost: float, floor: float, bar: float) -> str:
    """`cirron-otel / written out: 1.100 (bar 1.2)`; it ends in ABOVE if the ratio is above it."""
    ratio = cost / floor if floor else float("inf")
    return f"{OURS} / {beside}: {ratio:.3f} (bar {bar:g}{', ABOVE' if ratio > bar else ''})"


def _spread(values: Added) -> float:
    """Half the width of the middle half, µs."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


def section(sizes: Sizes) -> None:
    """Measure and print each trainer that is installed."""
    print(f"trainers, 26 modules, load {os.getloadavg()[0]:.1f} before they start", flush=True)
    pythons = {OURS: Path(sys.executable), TORCH_ALONE: Path(sys.executable)}
    try:
        pythons[NEIGHBOUR] = CIRRON_SDK.make()
    except EnvironmentUnavailableError as error:
        print(f"  without {NEIGHBOUR}: {error}")
    installed = [trainer for trainer in TRAINERS if importlib.util.find_spec(trainer)]
    with Workers(PROGRAM, sizes.is_forked, [IMPORTED[name] for name in installed]) as processes:
        for trainer, title in TRAINERS.items():
            if trainer in installed:
                report(trainer, sizes, measure(processes, trainer, sizes, pythons))
            else:
                print(f"  {title}: left out, because {trainer} is not installed", flush=True)
