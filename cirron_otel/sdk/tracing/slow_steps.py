"""The definition of a slow step: it takes much longer than the median of recent steps."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

RECENT_STEPS = 101
"""Number of recent steps whose median length defines slow steps."""
FEWEST_STEPS = 5
"""Number of steps before any step counts as slow."""


class SlowSteps:
    """The lengths of a process's recent steps."""

    def __init__(self, factor: float) -> None:
        """A step is slow if it takes more than `factor` times the median of recent steps."""
        self._factor = factor
        self._lengths: deque[int] = deque()
        self._sorted: list[int] = []
        """The lengths in ascending order."""

    def is_slow(self, length: int) -> bool:
        """Return whether a step of this length, in ns, would be slow now."""
        if len(self._lengths) < FEWEST_STEPS:
            return False
        middle = (len(self._sorted) - 1) // 2
        return length > self._factor * self._sorted[middle]

    def add(self, length: int) -> None:
        """Add the length of a step."""
        self._lengths.append(length)
        insort(self._sorted, length)
        if len(self._lengths) > RECENT_STEPS:
            del self._sorted[bisect_left(self._sorted, self._lengths.popleft())]
