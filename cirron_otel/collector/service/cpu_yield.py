"""Resting while others want the cores: what was acknowledged may be translated a moment later."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_COUNTERS = Path("/proc/thread-self/schedstat")
_LONG_QUEUE = 0.1
"""Waiting for a core for so much of the time that it had one: there are too few for all."""
_REST = 4.0
"""Times as long as it worked."""
_LONGEST_S = 0.5
_LOOK_S = 0.05
"""So often it is asked in a rest whether there is a hurry."""


class Cores(NamedTuple):
    """What a thread had of the cores so far."""

    had_ns: int
    queued_ns: int
    """So long it could have run, and others did."""


def cores() -> Cores | None:
    """Of this thread; None where the kernel does not say (Linux: "Scheduler Statistics")."""
    try:
        had, queued, *_ = _COUNTERS.read_text().split()
        return Cores(int(had), int(queued))
    except (OSError, ValueError):
        return None


class Yielding:
    """Rests, of one thread that always has work.

    Where it had to queue for a core, others have work, too, and are waited for: a training step, or
    a client whose request is to be acknowledged. What it cannot tell from them are other threads of
    its own process, and a cgroup's limit. Why not by a low priority: docs/adr/0009.
    """

    def __init__(self, counters: Callable[[], Cores | None] = cores) -> None:
        """`counters` are those of the thread that asks."""
        self._counters = counters
        self._before = counters()

    def rest(self, is_urgent: Callable[[], bool]) -> float:
        """Rest for what was done since the last call, unless it is urgent; returns seconds.

        `is_urgent` is asked before and every now and then.
        """
        left_s, rested_s = self._rest_s(), 0.0
        while left_s > rested_s and not is_urgent():
            pause_s = min(left_s - rested_s, _LOOK_S)
            time.sleep(pause_s)
            rested_s += pause_s
        return rested_s

    def _rest_s(self) -> float:
        """How long to rest; 0 with cores to spare."""
        now, before = self._counters(), self._before
        if now is None or before is None:
            self._before = now
            return 0.0
        had = now.had_ns - before.had_ns
        queued = now.queued_ns - before.queued_ns
        self._before = now
        return min(had / 1e9 * _REST, _LONGEST_S) if queued > had * _LONG_QUEUE else 0.0
