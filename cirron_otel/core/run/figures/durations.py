"""The figures of many durations: exact for some, from ranges above that number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...analysis.breakdown import PhaseFigures

EXACT = 100_000
"""The number of durations up to which medians and percentiles are exact (docs/report.md)."""
_AT_ONCE = 1 << 16
_FEW = 1 << 12
_SHIFT = 45
"""The low bits of a double that a range does not distinguish: 128 ranges for each power of 2."""
_OFFSET = (1023 << 7) - 1
"""The range of 1 is 1; that of 0 is 0."""
_RANGES = 128 * 80
"""The number of ranges on each side of 0. Sums of several durations have more than 64 bits."""

_MAX_NS = float(np.nextafter(2.0**63, 0))
"""The greatest float that is an int64."""


def to_ns(amounts: np.ndarray) -> np.ndarray:
    """Return times as whole nanoseconds; a float beyond the range of int64 is its end."""
    if amounts.dtype.kind == "f":
        amounts = np.clip(amounts, -_MAX_NS, _MAX_NS)
    return amounts.astype(np.int64)


class Durations:
    """Some durations in ns, in order.

    Above `EXACT`, a percentile is the middle of a range, at most 0.4 % beside the duration.
    """

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[np.ndarray] = []
        self._held = self._total = 0
        self._ranges: Any = 0
        self._ends: tuple[int, int] | None = None
        """The lowest and the highest duration of those in ranges."""

    def add(self, durations: np.ndarray) -> None:
        """Add durations, which must not change later."""
        self.count += len(durations)
        self._held += len(durations)
        self._kept.append(durations)
        if self.count > EXACT and self._held >= _AT_ONCE:
            self._reduce()

    def values(self) -> np.ndarray:
        """Return all durations that are not in ranges, in order."""
        if len(self._kept) != 1:
            self._kept = [np.concatenate([np.zeros(0, np.int64), *self._kept])]
        return self._kept[0]

    def _reduce(self) -> None:
        """Count the durations in ranges."""
        durations = self.values()
        if len(durations):
            low, high = int(durations.min()), int(durations.max())
            ends = self._ends or (low, high)
            self._ends = min(low, ends[0]), max(high, ends[1])
        self._total += sum_of(durations)
        self._ranges = self._ranges + _counts(durations)
        self._kept, self._held = [], 0

    def figures(self, name: str) -> PhaseFigures:
        """Return the figures of the durations."""
        count = self.count
        if count <= EXACT:
            [figures] = table_figures([name], self.values()[None])
            return figures
        self._reduce()
        low, high = self._ends or (0, 0)
        up_to = np.cumsum(self._ranges)

        def nth(place: int) -> int:
            if place in (0, count - 1):
                return high if place else low
            return min(max(_middle(int(np.searchsorted(up_to, place, "right"))), low), high)

        return PhaseFigures.of(name, count, self._total, nth)


def _counts(durations: np.ndarray) -> np.ndarray:
    is_below = durations < 0
    ranges = np.abs(durations.astype(np.float64)).view(np.int64)
    ranges >>= _SHIFT
    ranges -= _OFFSET
    np.clip(ranges, 0, _RANGES, out=ranges)
    if is_below.any():
        ranges[is_below] *= -1
    ranges += _RANGES
    return np.bincount(ranges, minlength=2 * _RANGES + 1)


def _middle(place: int) -> int:
    """Return the middle of the range at a place."""
    number = abs(place - _RANGES)
    if not number:
        return 0
    bounds = (np.array([number, number + 1], np.int64) + _OFFSET) << _SHIFT
    middle = int(bounds.view(np.float64).mean())
    return middle if place > _RANGES else -middle


def is_exact(count: int) -> bool:
    """Return whether the figures of so many durations are exact."""
    return count <= EXACT


def figures_of(named: Sequence[tuple[str, Durations]]) -> list[PhaseFigures]:
    """Return the figures of several durations; of few, equal numbers of them together."""
    counts = {each.count for _, each in named}
    if len(counts) != 1 or max(counts) > min(EXACT, _FEW):
        return [each.figures(name) for name, each in named]
    (count,) = counts
    if not count:
        return [PhaseFigures(name) for name, _ in named]
    return table_figures(
        [name for name, _ in named], np.array([each.values() for _, each in named])
    )


def table_figures(names: Sequence[str], table: np.ndarray) -> list[PhaseFigures]:
    """Return the exact figures of several durations: the table has a row for each name."""
    count = table.shape[1]
    if not count:
        return [PhaseFigures(name) for name in names]
    places = PhaseFigures.places(count)
    is_short = int(table.min()) >= 0 and int(table.max()) < 1 << 32
    ordered = np.sort(table.astype(np.uint32) if is_short else table, axis=1)  # half the time
    if is_short:
        totals: list[int] = table.sum(axis=1).tolist()
    else:
        totals = sums_at(ordered.reshape(-1), np.arange(len(names)) * count)
    return [
        PhaseFigures.at(name, count, total, row)
        for name, total, row in zip(names, totals, ordered[:, places].tolist(), strict=True)
    ]


def sums_at(numbers: np.ndarray, firsts: np.ndarray) -> list[int]:
    """Return the exact sums of numbers of 64 bits, from each first one to the next first one."""
    if not len(numbers):
        return []
    largest = max(abs(int(numbers.max())), abs(int(numbers.min())))
    if largest < 2**62 // len(numbers):
        sums: list[int] = np.add.reduceat(numbers, firsts).tolist()
        return sums
    return [sum(each.tolist()) for each in np.split(numbers, firsts[1:])]


def sum_of(numbers: np.ndarray) -> int:
    """Return the exact sum of numbers of 64 bits."""
    return sum(sums_at(numbers, np.zeros(1, np.int64)))
