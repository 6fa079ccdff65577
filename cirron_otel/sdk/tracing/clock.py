"""One clock for all times: monotonic, anchored to wall time once per process.

If the wall clock is stepped, no scope gets a negative duration: differences are monotonic, and all
times of a process are off by the same amount.
"""

from __future__ import annotations

import time
from time import monotonic_ns

now = monotonic_ns
"""The monotonic clock, nanoseconds; `wall` converts its readings to wall-clock time."""


def _anchor() -> int:
    """Return wall time minus monotonic time, ns; take the most precise of several readings."""
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
    """Convert a reading of `now` to nanoseconds since the Unix epoch."""
    return monotonic + ANCHOR


def wall_now() -> int:
    """Return the current time by the anchored clock, nanoseconds since the Unix epoch."""
    return monotonic_ns() + ANCHOR
