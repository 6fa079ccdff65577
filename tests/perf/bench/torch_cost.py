"""The torch section of `make bench`: what a training step pays for being traced.

Each tool has a process of its own, all alive at once; they train a block at a time, in an order
shuffled anew each round. A tool's added time is its block less the bare process's of that round,
less the same difference before any tool was installed: neither the machine's drift nor a process's
luck with its memory is taken for a cost. Several generations of processes, their rounds pooled.

What is below a per cent of the step needs more: how a process's memory lies after a tool has been
imported, whether or not it then does anything, shifts every step by as much. The longer step is
trained in one process, with ours on and off in turn.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.kit.environments import EnvironmentUnavailableError
from tests.sdk.instrumentation.torch.peers import PEERS, TRACEML

from . import sdk
from .torch_tables import (
    BARE,
    BY_HAND,
    CLOCKS,
    OURS,
    TRACEML_AI,
    Bar,
    Block,
    Round,
    Sizes,
    Subject,
    Table,
    tables,
)
from .worker_processes import Workers

PROGRAM = Path(__file__).with_name("torch_worker.py")
IMPORTED = ("torch._dynamo",)
"""Modules that the first optimizer of a process imports, which takes almost two seconds."""


class Worker:
    """A process of torch_worker.py, started and not waited for."""

    def __init__(
        self,
        processes: Workers,
        subject: Subject,
        options: dict[str, Any],
        python: Path,
        folder: Path,
    ) -> None:
        self.label = subject.label
        self._log = folder / "log"
        environment = sdk.environment(str(folder)) | {
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        }
        if subject.tool in PEERS:
            del environment["PYTHONPATH"]
        arguments = [subject.tool, json.dumps(options)]
        self._process = processes.start(python, arguments, folder, environment)

    def do(self, command: str, **parameters: Any) -> dict[str, Any]:
        """Its answer. Raises RuntimeError, with the end of its log, where it gives none."""
        line = self._process.ask(json.dumps({"do": command, **parameters}))
        if not line:
            said = "\n".join(self.log().splitlines()[-20:])
            raise RuntimeError(f"{self.label} did not answer {command!r}; it said:\n{said}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def log(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace")

    def end(self) -> None:
        """Let it end, or kill it after a minute."""
        self._process.end()


@contextlib.contextmanager
def _workers(
    processes: Workers, table: Table, subjects: Sequence[Subject], pythons: dict[str, Path]
) -> Iterator[list[Worker]]:
    """A generation: a process for each subject that is here, each in a directory of its own."""
    with contextlib.ExitStack() as stack:
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cirron-otel-bench-")))
        workers = []
        for number, subject in enumerate(subjects):
            if subject.tool not in pythons:
                continue
            options = subject.options | {"work": table.work}
            if subject.tool == TRACEML_AI:
                options |= stack.enter_context(_aggregator(parent / "aggregator"))
            folder = parent / str(number)
            folder.mkdir()
            workers.append(Worker(processes, subject, options, pythons[subject.tool], folder))
            stack.callback(workers[-1].end)
        yield workers


@contextlib.contextmanager
def _aggregator(folder: Path) -> Iterator[dict[str, Any]]:
    """traceml's other process, as for scripts that it does not launch; the options that name it."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [TRACEML.home / "bin" / "traceml", "serve", "--session-id", "bench"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--aggregator-port", str(port)],
            cwd=folder,
            env=sdk.environment(str(folder)),
            stdout=log,
            stderr=log,
        )
    try:
        where = {"aggregator_host": "127.0.0.1", "aggregator_port": port}
        yield where | {"session_id": "bench", "connect_timeout_sec": 60.0}
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


Added = dict[str, dict[str, list[float]]]
"""By label and clock: µs added a step, one figure a round."""


def measure(
    processes: Workers, table: Table, sizes: Sizes, pythons: dict[str, Path]
) -> tuple[Added, Block, list[str]]:
    """What each adds, the bare step's medians, and a line on what each tool lost."""
    added: Added = {}
    bare: list[Block] = []
    lines: list[str] = []
    generation_of = _on_and_off if table.is_on_and_off else _side_by_side
    for generation in range(sizes.generations):
        before, after, lines = generation_of(processes, table, pythons, random.Random(generation))
        bare += [blocks[BARE] for blocks in after]
        for subject in table.subjects:
            for clock in CLOCKS if subject.label in after[0] else ():
                found = added.setdefault(subject.label, {}).setdefault(clock, [])
                found += added_by(subject.label, clock, before, after)
    medians = {clock: statistics.median(each[clock] for each in bare) for clock in CLOCKS}
    return added, medians, lines


def _side_by_side(
    processes: Workers, table: Table, pythons: dict[str, Path], order: random.Random
) -> tuple[list[Round], list[Round], list[str]]:
    """A process a subject: rounds without any tool, rounds with them, and what was lost."""
    with _workers(processes, table, table.subjects, pythons) as workers:
        _rounds(workers, 1, order)  # to warm them up
        before = _rounds(workers, table.rounds, order)
        for worker in workers:
            worker.do("install")
        _rounds(workers, 1, order, settles=table.is_held_back)
        after = _rounds(workers, table.rounds, order, table.epochs, table.is_held_back)
        return before, after, [line for worker in workers for line in _losses(worker)]


def _on_and_off(
    processes: Workers, table: Table, pythons: dict[str, Path], order: random.Random
) -> tuple[list[Round], list[Round], list[str]]:
    """The same of one process, which has no luck beside itself."""
    _, subject = table.subjects
    rounds: list[Round] = []
    lines: list[str] = []
    with _workers(processes, table, [subject], pythons) as [worker]:
        for _ in range(table.rounds + 1):
            blocks: Round = {}
            for label in order.sample((BARE, subject.label), 2):
                if label != BARE:
                    worker.do("install")
                blocks[label] = worker.do("block", epochs=table.epochs)
                if label != BARE:
                    lines = _losses(worker)
            rounds.append(blocks)
    equal = {label: dict.fromkeys(CLOCKS, 0.0) for label in rounds[0]}
    return [equal], rounds[1:], lines  # the first has warmed it up


def added_by(
    label: str, clock: str, before: Sequence[Round], after: Sequence[Round]
) -> list[float]:
    """What it added in each round of `after`, which `before` preceded without any tool."""
    luck = statistics.median(blocks[label][clock] - blocks[BARE][clock] for blocks in before)
    return [blocks[label][clock] - blocks[BARE][clock] - luck for blocks in after]


def _rounds(
    workers: Sequence[Worker],
    number: int,
    order: random.Random,
    epochs: int = 1,
    settles: bool = False,
) -> list[Round]:
    """Rounds of a block each, by label."""
    rounds = []
    for _ in range(number):
        blocks: Round = {}
        for worker in order.sample(workers, len(workers)):
            blocks[worker.label] = worker.do("block", epochs=epochs)
            if settles:
                worker.do("settle")
        rounds.append(blocks)
    return rounds


def _losses(worker: Worker) -> list[str]:
    """End the tool; a line about what it dropped, where it counts that or says so."""
    counts = worker.do("close")
    said = worker.log().count("dropping step")
    if said:
        counts = {"step": said}
    if not counts:
        return []
    lost = {name.removesuffix("_count"): count for name, count in counts.items() if count}
    listed = ", ".join(f"{count} {name}" for name, count in lost.items()) or "nothing"
    return [f"lost by {worker.label}, at last: {listed}"]


def _spread(values: Sequence[float]) -> float:
    """Half the width of the middle half, µs."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


def report(table: Table, added: Added, bare: Block, rounds: int) -> None:
    """The table."""
    steps = table.work["steps"] * table.epochs
    print(f"  {table.title}: µs added a step, medians of {rounds} rounds of {steps:,} steps")
    headings = "".join(f"{heading:>15}" for heading in CLOCKS.values())
    print(f"  {'':<30}{headings}   half the rounds of '{CLOCKS[table.clock]}'")
    print(f"  {'the bare step itself':<30}" + "".join(f"{bare[clock]:15.1f}" for clock in CLOCKS))
    for label, figures in added.items():
        if label == BARE:
            continue
        medians = "".join(f"{statistics.median(figures[clock]):+15.1f}" for clock in CLOCKS)
        print(f"  {label:<30}{medians}   ± {_spread(figures[table.clock]):.1f}")
    for bar in table.bars:
        if bar.beside in added and bar.label in added:
            print(f"  {_verdict(table, bar, added, bare)}")


def _verdict(table: Table, bar: Bar, added: Added, bare: Block) -> str:
    """`cirron-otel / cirron-sdk, thread cpu: 0.210 (bar 0.35)`; it ends in ABOVE where it is."""
    cost = statistics.median(added[bar.label][table.clock])
    if bar.beside == BARE:
        floor, beside = bare[table.clock], "the step"
    else:
        floor, beside = statistics.median(added[bar.beside][table.clock]), bar.beside
    ratio = cost / floor if floor else float("inf")
    above = ", ABOVE" if ratio > bar.share else ""
    return f"{bar.label} / {beside}, {CLOCKS[table.clock]}: {ratio:.4f} (bar {bar.share:g}{above})"


def _pythons() -> dict[str, Path]:
    """The interpreter of each tool that is here, and a line about each that is not."""
    own = Path(sys.executable)
    found = {BARE: own, OURS: own, BY_HAND: own}
    for name, environment in PEERS.items():
        try:
            found[name] = environment.make()
        except EnvironmentUnavailableError as error:
            print(f"  without {name}: {error}")
    return found


def section(processes: Workers, sizes: Sizes) -> None:
    """Run it and print it; without torch, say that it is left out."""
    if importlib.util.find_spec("torch") is None:
        print("torch: left out, for it is not installed (make torch)", flush=True)
        return
    print(f"torch, 26 modules, load {os.getloadavg()[0]:.1f} before it starts", flush=True)
    pythons = _pythons()
    for table in tables(sizes):
        added, bare, lines = measure(processes, table, sizes, pythons)
        report(table, added, bare, table.rounds * sizes.generations)
        for line in lines:
            print(f"  {line}", flush=True)
