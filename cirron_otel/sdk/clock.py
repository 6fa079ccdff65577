"""One clock for all times: monotonic, anchored to wall time once per process.

A wall clock that is stepped back or forth never gives a scope a negative length: differences are
monotonic, and every time of a process is off by the same amount.
"""

from __future__ import annotations

import time
from time import monotonic_ns

now = monotonic_ns
"""The monotonic clock, nanoseconds; `wall` makes a wall-clock time of its readings."""


def _anchor() -> int:
    """Wall time less monotonic time, ns: the reading with the least doubt of several."""
    best = offset = None
    for _ in range(5):
        before = monotonic_ns()
        wall_ns = time.time_ns()
        doubt = monotonic_ns() - before
        if best is None or doubt < best:
            best, offset = doubt, wall_ns - before - doubt // 2
    return offset or 0


ANCHOR = _anchor()


def wall(monotonic: int) -> int:
    """Nanoseconds since the Unix epoch for a reading of `now`."""
    return monotonic + ANCHOR


def wall_now() -> int:
    """Nanoseconds since the Unix epoch, by the anchored clock."""
    return monotonic_ns() + ANCHOR
