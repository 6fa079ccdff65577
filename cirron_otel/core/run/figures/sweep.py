"""One sweep over intervals that may overlap: at every instant, exactly one of them counts."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """An interval of a time line."""

    start: int
    end: int
    depth: int
    """The number of scopes around the scope; 0 if it is unknown."""
    account: str
    name: int
    """The token of the name under which its time is listed."""
    overrides: bool = False
    """Whether everything inside the interval belongs to its account."""
    text: str = ""
    """The name. It decides between intervals with equal times: tokens differ between readers."""

    @property
    def order(self) -> tuple[Any, ...]:
        """The place among the intervals that are open at a time, the innermost first."""
        return -self.start, -self.depth, self.end - self.start, self.account, self.text


def outermost(intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Yield the overriding intervals by start, except those inside another one of their account."""
    ends: dict[str, int] = {}
    for each in sorted(
        (each for each in intervals if each.overrides), key=lambda each: (each.start, -each.end)
    ):
        if each.end > ends.get(each.account, each.start - 1):
            ends[each.account] = each.end
            yield each


def sweep(intervals: Iterable[Interval]) -> Iterator[tuple[int, int, Interval]]:
    """Yield the pieces of time that some interval covers, in order, each with its interval.

    The interval that started last counts; of several, the deeper one, then the shorter one. If an
    interval that overrides contains it, that one counts instead. Empty intervals are left out.
    """
    waiting = [each for each in intervals if each.end > each.start]
    waiting.sort(key=lambda each: each.start, reverse=True)
    bounds = sorted({time for each in waiting for time in (each.start, each.end)})
    opened: list[tuple[tuple[Any, ...], Interval]] = []
    overriding: list[Interval] = []
    for start, end in pairwise(bounds):
        while waiting and waiting[-1].start == start:
            each = waiting.pop()
            heapq.heappush(opened, (each.order, each))
            if each.overrides:
                overriding.append(each)
        while opened and opened[0][-1].end <= start:
            heapq.heappop(opened)
        if not opened:
            continue
        innermost = opened[0][-1]
        if overriding:
            overriding = [each for each in overriding if each.end > start]
            around = (
                o for o in overriding if o.start <= innermost.start and innermost.end <= o.end
            )
            innermost = min(around, default=innermost, key=lambda each: each.order)
        yield start, end, innermost
