"""The wall time of each rank by row: a fold over blocks of units, after the other intervals."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from ....semconv import SESSION as SESSION_NAME
from ...analysis.breakdown import is_checkpoint
from ...analysis.run_time import SESSION, WORK, Row, WallTime, wall_time_of
from ...records.rows import IndexedSpan
from ..relations import ABSENT, Block

_KIND: Final[dict[Row, int]] = {row: number for number, row in enumerate(WORK)}
_NEVER: Final = 1 << 64
_EVAL: Final = "eval"

Interval: TypeAlias = tuple[Any, ...]
"""A start, an end, a kind, and the time without work, of `wall_time_of`."""


@dataclass(slots=True)
class WallTimeFold:
    """The starts and the durations of the units of each rank, and its other intervals."""

    _units: dict[int, list[np.ndarray]] = field(default_factory=dict)
    _others: dict[int | None, list[Interval]] = field(default_factory=dict)

    def add_scopes(self, spans: Iterable[IndexedSpan]) -> None:
        """Add scopes: checkpoints, evaluations and sessions count."""
        for span in spans:
            name = span.name
            if is_checkpoint(name):
                kind = _KIND["checkpoints"]
            elif name == _EVAL:
                kind = _KIND["evaluation"]
            elif name == SESSION_NAME:
                kind = SESSION
            else:
                continue
            interval = span.start_ns, span.end_ns, kind
            self._others.setdefault(span.rank, []).append(interval)

    def add(self, units: Block) -> None:
        """Add units. Those of a rank are added in the order of their start."""
        for rank in np.unique(units["rank"]).tolist():
            is_own = units["rank"] == rank
            times = np.stack([units["start_ns"][is_own], units["ns"][is_own]], axis=1)
            self._units.setdefault(rank, []).append(times)

    def units_of(self, rank: int | None) -> np.ndarray:
        """Return the start and the duration of each unit of a rank, in order, ns: shape (n, 2)."""
        kept = self._units.get(ABSENT if rank is None else rank, [])
        return np.concatenate([np.zeros((0, 2), np.int64), *kept])

    def of_rank(
        self, rank: int | None, first_ns: int | None, last_ns: int | None, warm_up: int
    ) -> WallTime:
        """Return the wall time of a rank from its first to its last time.

        Its first `warm_up` units count as warm-up.
        """
        times = self.units_of(rank)
        steady_ns = first_ns
        if warm_up:
            steady_ns = int(times[warm_up, 0]) if warm_up < len(times) else None
        limit = last_ns if steady_ns is None else steady_ns
        others = sorted(self._others.get(rank, ()), key=_order_of)
        intervals = intervals_of(map(tuple, times.tolist()), others, limit or 0, last_ns or 0)
        return wall_time_of(intervals, first_ns, last_ns)


def _order_of(interval: Interval) -> tuple[Any, ...]:
    start, end, kind, *_ = interval
    return start is not None, start or 0, end is not None, end or 0, kind


def intervals_of(
    units: Iterable[tuple[int, int]], others: list[Interval], steady_ns: int, last_ns: int
) -> Iterator[Interval]:
    """Yield the intervals of a rank's units (start, duration) and the others, by their start.

    The units before `steady_ns` are warm-up. Consecutive units of one kind are one interval, with
    the time between them, if no unit overlaps them, and nothing else begins or ends during them.
    A unit without a duration is an interval of its own.
    """
    times = {time for begin, end, *_ in others for time in (begin, end) if time is not None}
    joined = _joined(units, iter(sorted({*times, last_ns})), steady_ns)
    return heapq.merge(joined, others, key=_order_of)


def _joined(
    units: Iterable[tuple[int, int]], times: Iterator[int], steady_ns: int
) -> Iterator[Interval]:
    until = start = end = latest = -_NEVER
    kind, apart, is_alone = -1, 0, True
    for begin, ns in units:
        of_unit = _KIND["warm_up" if begin < steady_ns else "steps"]
        if of_unit == kind and not is_alone and ns and end <= begin and begin + ns <= until:
            apart += begin - end
            latest = end = begin + ns
            continue
        if kind >= 0:
            yield start, end, kind, apart
        start, end, kind, apart = begin, begin + ns, of_unit, 0
        is_alone = begin < latest or not ns  # an earlier one still runs, or it is no work
        latest = max(latest, end)
        while until < begin:
            until = next(times, _NEVER)
    if kind >= 0:
        yield start, end, kind, apart
