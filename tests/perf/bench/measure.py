"""Interleaved blocks: every case once a round, so that a machine's moods meet them all alike."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def nothing() -> None:
    """What a case needs that needs no preparation."""


@dataclass
class Case:
    """What is timed: `work(n)` does it n times."""

    name: str
    work: Callable[[int], object]
    prepare: Callable[[], object] = nothing
    """Called before each block, untimed."""
    after: Callable[[], object] = nothing
    """Called after each block, untimed."""
    spurt: int = 0
    """Items done in a row: a block is as many spurts as it takes, each prepared; 0: all at once."""
    seconds: list[float] = field(default_factory=list)
    """What each block took."""
    cpu_seconds: list[float] = field(default_factory=list)
    """The thread's CPU time of it: on a busy machine it says what the wall clock cannot."""

    def us(self, items: int) -> float:
        """The median of the blocks, µs an item."""
        return statistics.median(self.seconds) / items * 1e6

    def cpu_us(self, items: int) -> float:
        """The same of the thread's CPU time."""
        return statistics.median(self.cpu_seconds) / items * 1e6

    def spread(self) -> float:
        """The middle half of the blocks, as a share of their median."""
        if len(self.seconds) < 2:
            return 0.0
        low, middle, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / middle


def interleave(cases: Sequence[Case], items: int, blocks: int) -> None:
    """Time `blocks` blocks of `items` of each case, a block of each in turn."""
    gc.collect()
    gc.freeze()  # what each of them holds already is not to be looked through in another's blocks
    for _ in range(blocks):
        for case in cases:
            spurts = max(items // case.spurt, 1) if case.spurt else 1
            took = [_spurt(case, items // spurts) for _ in range(spurts)]
            case.seconds.append(sum(wall for wall, _ in took))
            case.cpu_seconds.append(sum(cpu for _, cpu in took))
    gc.unfreeze()


def _spurt(case: Case, items: int) -> tuple[float, float]:
    """Seconds of wall and of CPU time that it took."""
    case.prepare()
    gc.collect()
    start, cpu_start = time.perf_counter(), time.thread_time()
    case.work(items)
    took = time.perf_counter() - start, time.thread_time() - cpu_start
    case.after()
    return took


def against(case: Case, floor: Case, bar: float | None = None) -> str:
    """The ratio of two cases, also by CPU time, and its bar: `0.162, cpu 0.160 (bar 0.18)`.

    It ends in `ABOVE` where the ratio is above the bar.
    """
    ratio = case.us(1) / floor.us(1)
    if bar is None:
        return f"{ratio:.3f}"
    by_cpu = case.cpu_us(1) / floor.cpu_us(1)
    return f"{ratio:.3f}, cpu {by_cpu:.3f} (bar {bar:g}{', ABOVE' if ratio > bar else ''})"


COMMAND = Path(sys.executable).with_name("cirron-otel")


@dataclass(frozen=True)
class Run:
    """The cost of a process."""

    wall_s: float
    cpu_s: float
    peak: int
    """The largest process's peak memory, bytes; at least that of its parent."""


def run(arguments: Sequence[str | Path], output: Path | None = None) -> Run:
    """Run a program to its end, with its output in a file; it must succeed."""
    before = time.perf_counter()
    with (output or Path(os.devnull)).open("wb") as file:
        process = subprocess.Popen(arguments, stdout=file)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise AssertionError(f"{arguments} ended with {process.returncode}")
    wall = time.perf_counter() - before
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def command(arguments: list[str]) -> tuple[float, float, int]:
    """Wall and CPU seconds of a command, and the largest process's peak memory in bytes."""
    done = run([COMMAND, *arguments])
    return done.wall_s, done.cpu_s, done.peak


_LAUNCHER = """
import os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ,
                       file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""
"""Starts a command from a small process: a child's figure begins with its parent's size."""


def peak_memory(*arguments: str) -> int:
    """The largest resident set of a command, bytes."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, COMMAND, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    code, kilobytes = map(int, done.stdout.split())
    assert code == 0
    return kilobytes * 1024
