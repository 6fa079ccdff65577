"""The sampling section of `make bench`: what samples of memory add to a step of four phases.

Two processes, one for each tool, run blocks of steps in each of their modes, in an order shuffled
anew each round. The figures are CPU times, because other programs may use the machine. A block with
the default interval follows or precedes one without samples immediately, because the speed of the
machine changes more from block to block than the samples add.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.core.importers.stormlog.peers import STORMLOG_039
from tests.kit.environments import EnvironmentUnavailableError

from . import sdk
from .sampling_worker import MODES

PROGRAM = Path(__file__).with_name("sampling_worker.py")
OURS, NEIGHBOUR = "cirron-otel", "stormlog"
BARE, TRACED, SAMPLED, OFTEN = "bare", *MODES
BAR_NEIGHBOUR, BAR_STEP = 0.1, 1.01


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    steps: int = 4000
    """Of a block; about two seconds."""
    rounds: int = 9
    pairs: int = 24
    """Of blocks with and without samples."""


TINY = Sizes(40, 1, 2)
"""Enough to see that everything runs."""


class Worker:
    """A process of sampling_worker.py, with its figures: (µs of the thread, µs of the process)."""

    def __init__(self, tool: str, python: str | Path, folder: Path) -> None:
        """Start the process in `folder`, which it fills."""
        self.sample_us: list[float] = []
        self.figures: dict[str, list[tuple[float, float]]] = {}
        self._log = folder / "log"
        environment = sdk.environment(str(folder))
        if tool == NEIGHBOUR:
            del environment["PYTHONPATH"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, PROGRAM, tool], cwd=folder, env=environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def run(self, mode: str, steps: int) -> None:
        """Run a block. Raises RuntimeError if the process has ended."""
        with contextlib.suppress(BrokenPipeError):
            question = json.dumps({"mode": mode, "steps": steps})
            print(question, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"no answer; the log:\n{self._log.read_text()[-2000:]}")
        thread, process, *sample_us = json.loads(line)
        self.sample_us = [*self.sample_us, *sample_us]
        self.figures.setdefault(mode, []).append((thread, process))

    def end(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)

    def added(self, mode: str, base: str, which: int) -> float:
        """Return the median of what `mode` adds to `base`, µs a step."""
        pairs = zip(self.figures[mode], self.figures[base], strict=False)
        return statistics.median(one[which] - other[which] for one, other in pairs)

    def ratios(self, mode: str, base: str, pairs: int) -> list[float]:
        """Return the ratios of the process's CPU time in the last pairs of blocks."""
        last = zip(self.figures[mode][-pairs:], self.figures[base][-pairs:], strict=True)
        return [one[1] / other[1] for one, other in last]


def measure(sizes: Sizes, pythons: dict[str, str | Path]) -> dict[str, Worker]:
    """Return the workers by tool, with their figures."""
    order = random.Random("sampling")
    modes = {OURS: [BARE, *MODES], NEIGHBOUR: [BARE, OFTEN]}
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as parent:
        workers = {}
        for tool, python in pythons.items():
            folder = Path(parent) / tool
            folder.mkdir()
            workers[tool] = Worker(tool, python, folder)
        try:
            for _ in range(sizes.rounds):
                blocks = [(tool, mode) for tool in workers for mode in modes[tool]]
                for tool, mode in order.sample(blocks, len(blocks)):
                    workers[tool].run(mode, sizes.steps)
            for _ in range(sizes.pairs):
                for mode in order.sample((SAMPLED, TRACED), 2):
                    workers[OURS].run(mode, sizes.steps)
        finally:
            for worker in workers.values():
                worker.end()
    return workers


def section(sizes: Sizes) -> None:
    """Measure and print."""
    print("sampling: a step of four phases; CPU time of all threads")
    pythons: dict[str, str | Path] = {OURS: sys.executable}
    try:
        pythons[NEIGHBOUR] = STORMLOG_039.make()
    except EnvironmentUnavailableError as error:
        print(f"  without stormlog 0.3.9: {error}")
    workers = measure(sizes, pythons)
    ours = workers[OURS]
    step = statistics.median(process for _, process in ours.figures[BARE])
    print(f"  {'a step without a tool':<46}{step:9.1f} µs")
    for mode in MODES:
        thread, process = (ours.added(mode, BARE, which) for which in (0, 1))
        print(f"  {OURS + ', ' + mode:<46}{process:+9.1f} µs ({thread:+.1f} in its own thread)")
    print(f"  one sample: {statistics.median(ours.sample_us):.0f} µs of the sampler's thread")
    ratios = ours.ratios(SAMPLED, TRACED, sizes.pairs)
    ratio = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"  sampled / traced: {ratio:.4f} ± {(high - low) / 2:.4f} {bar(ratio, BAR_STEP)}")
    if NEIGHBOUR in workers:
        thread, process = (workers[NEIGHBOUR].added(OFTEN, BARE, which) for which in (0, 1))
        print(
            f"  {'stormlog 0.3.9, 20 Hz':<46}{process:+9.1f} µs ({thread:+.1f} in its own thread)"
        )
        ratio = ours.added(OFTEN, BARE, 1) / process
        print(f"  cirron-otel / stormlog at 20 Hz: {ratio:.3f} {bar(ratio, BAR_NEIGHBOUR)}")


def bar(ratio: float, most: float) -> str:
    """Return the limit, and whether the ratio is above it."""
    return f"(bar {most}{', ABOVE' if ratio > most else ''})"
