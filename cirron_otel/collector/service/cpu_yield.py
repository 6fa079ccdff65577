"""Yield the CPU to other processes that wait for it, because translation is less urgent."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_COUNTERS = Path("/proc/thread-self/schedstat")
_LONG_QUEUE = 0.1
"""The ratio of waiting to running time above which the cores count as overloaded."""
_REST = 4.0
"""The ratio of resting to running time while the cores are overloaded."""
_LONGEST_S = 0.5
_LOOK_S = 0.05
"""The interval between checks for urgent work during a rest, seconds."""


class Cores(NamedTuple):
    """The CPU time of a thread."""

    had_ns: int
    """The time for which the thread ran."""
    queued_ns: int
    """The time for which the thread was ready to run but had no core."""


def cores() -> Cores | None:
    """Return the CPU time of this thread; None if the kernel does not report it.

    Source: the Linux kernel documentation, "Scheduler Statistics".
    """
    try:
        had, queued, *_ = _COUNTERS.read_text().split()
        return Cores(int(had), int(queued))
    except (OSError, ValueError):
        return None


class Yielding:
    """Pauses one thread that always has work.

    If the thread had to wait for a core, other threads have work too, and get priority: a training
    step, or a client that waits for an acknowledgement. The counters do not distinguish these from
    other threads of the same process, or from a cgroup's limit. docs/adr/0009 explains why a low
    priority is not used instead.
    """

    def __init__(self, counters: Callable[[], Cores | None] = cores) -> None:
        """`counters` returns the CPU time of the calling thread."""
        self._counters = counters
        self._before = counters()

    def rest(self, is_urgent: Callable[[], bool]) -> float:
        """Rest in proportion to the work since the last call, unless work is urgent; return the
        seconds rested.

        `is_urgent` is called before the rest and at intervals during it.
        """
        left_s, rested_s = self._rest_s(), 0.0
        while left_s > rested_s and not is_urgent():
            pause_s = min(left_s - rested_s, _LOOK_S)
            time.sleep(pause_s)
            rested_s += pause_s
        return rested_s

    def _rest_s(self) -> float:
        """Return the seconds to rest; 0 if cores are free."""
        now, before = self._counters(), self._before
        if now is None or before is None:
            self._before = now
            return 0.0
        had = now.had_ns - before.had_ns
        queued = now.queued_ns - before.queued_ns
        self._before = now
        return min(had / 1e9 * _REST, _LONGEST_S) if queued > had * _LONG_QUEUE else 0.0
