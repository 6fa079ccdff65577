"""The CPU time and the peak memory of the stages of a chain, each with its child processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 1.0

Stages = dict[str, Callable[[], Sequence[int]]]
"""The ids of the processes of each stage, by its name."""


class Usage:
    """What the processes of some stages have used."""

    def __init__(self, stages: Stages) -> None:
        """Take the CPU time so far as the zero of each stage."""
        self._stages = stages
        self._total: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._peak_mib: dict[str, float] = {}
        self.look()
        self._before = dict(self._total)

    def look(self) -> None:
        """Read the figures of the processes that run now."""
        for name, pids in self._stages.items():
            found = [each for pid in pids() for each in _tree(pid)]
            cpu_s = sum(cpu for cpu, _ in found)
            # A process that ends takes its time with it, unless its parent has waited for it.
            self._total[name] = max(self._total.get(name, 0.0), cpu_s)
            peak = max((peak for _, peak in found), default=0.0)
            self._peak_mib[name] = max(self._peak_mib.get(name, 0.0), peak)

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
            self.look()

    def cpu_s(self, stage: str) -> float:
        """The CPU time of a stage since this object was made, seconds."""
        return self._total.get(stage, 0.0) - self._before.get(stage, 0.0)

    def to_json(self, spans: int) -> dict[str, Any]:
        """The CPU time of each stage, and for each of `spans` spans, and the largest process."""
        return {
            name: {
                "cpu_s": round(self.cpu_s(name), 2),
                "cpu_us_per_span": round(self.cpu_s(name) / max(spans, 1) * 1e6, 1),
                "peak_mib": round(self._peak_mib[name]),
            }
            for name in self._stages
        }


def _tree(pid: int) -> Iterator[tuple[float, float]]:
    """Yield the CPU time, s, and the peak memory, MiB, of a process and of those below it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    yield sum(map(int, fields[11:15])) / _TICKS, int(peak[0]) / 1024 if peak else 0.0
    for child in children:
        yield from _tree(int(child))
