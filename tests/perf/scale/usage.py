"""The CPU time and the memory of the stages of a chain, each with its child processes."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 1.0
_MEMORY_EVERY = 5
"""The proportional memory is read at every fifth look: the kernel has to walk all pages for it."""

Stages = dict[str, Callable[[], Sequence[int]]]
"""The ids of the processes of each stage, by its name."""
Costs = dict[str, dict[str, Any]]
"""The figures of each stage."""


class Usage:
    """The use of the CPU and of memory by the processes of some stages.

    A stage of the calling process does not contain its children, which are other stages.
    """

    def __init__(self, stages: Stages) -> None:
        """Take the CPU time so far as the zero of each stage."""
        self._stages = stages
        self._total: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._peak_mib: dict[str, float] = {}
        self._together_mib: dict[str, float] = {}
        self.now_mib: dict[str, int] = {}
        """The memory of all processes of each stage at the last look, shared pages divided."""
        self._looks = itertools.count()
        self.look()
        self._before = dict(self._total)

    def look(self, *, is_last: bool = False) -> None:
        """Read the figures of the processes that run now."""
        has_memory = is_last or next(self._looks) % _MEMORY_EVERY == 0
        for name, pids in self._stages.items():
            found = [each for pid in pids() for each in _tree(pid)]
            cpu_s = sum(cpu for _, cpu, _ in found)
            # A process that ends takes its time with it, unless its parent has waited for it.
            self._total[name] = max(self._total.get(name, 0.0), cpu_s)
            peak = max((peak for _, _, peak in found), default=0.0)
            self._peak_mib[name] = max(self._peak_mib.get(name, 0.0), peak)
            if has_memory:
                together = sum(_proportional_mib(pid) for pid, _, _ in found)
                self.now_mib[name] = round(together)
                self._together_mib[name] = max(self._together_mib.get(name, 0.0), together)

    @contextmanager
    def watched(self) -> Iterator[Usage]:
        """Look at the processes every second inside the block, and at its end."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_INTERVAL_S):
                self.look()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
            self.look(is_last=True)

    def cpu_s(self, stage: str) -> float:
        """The CPU time of a stage since this object was made, seconds."""
        return self._total.get(stage, 0.0) - self._before.get(stage, 0.0)

    def to_json(self) -> Costs:
        """The CPU time of each stage, its largest process, and the peak of all of its processes."""
        return {
            name: {
                "cpu_s": round(self.cpu_s(name), 2),
                "peak_mib": round(self._peak_mib[name]),
                "together_mib": round(self._together_mib[name]),
            }
            for name in self._stages
        }


def joined(earlier: Mapping[str, Mapping[str, Any]], later: Costs) -> Costs:
    """Add the CPU times of two parts of a run, and take the larger memory."""
    return {
        name: {
            key: round(earlier[name][key] + value, 2)
            if key == "cpu_s"
            else max(earlier[name][key], value)
            for key, value in costs.items()
        }
        if name in earlier
        else costs
        for name, costs in later.items()
    }


def per_span(costs: Costs, spans: int) -> Costs:
    """Add the CPU time of each stage for each of `spans` spans."""
    return {
        name: each | {"cpu_us_per_span": round(each["cpu_s"] / max(spans, 1) * 1e6, 1)}
        for name, each in costs.items()
    }


def _tree(pid: int) -> Iterator[tuple[int, float, float]]:
    """Yield the id, the CPU time, s, and the peak, MiB, of a process and of those below it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    is_own = pid == os.getpid()
    ticks = sum(map(int, fields[11 : 13 if is_own else 15]))
    yield pid, ticks / _TICKS, int(peak[0]) / 1024 if peak else 0.0
    for child in () if is_own else children:
        yield from _tree(int(child))


def _proportional_mib(pid: int) -> float:
    """The memory of a process, with its share of the pages that it shares with others, MiB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
