"""The wall time of a rank by row, from its units and other intervals."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np

from ....semconv import SESSION as SESSION_NAME
from ...analysis.breakdown import is_checkpoint
from ...analysis.run_time import SESSION, WORK, Row, WallTime, wall_time_of
from ...records.rows import IndexedSpan

_KIND: Final[dict[Row, int]] = {row: number for number, row in enumerate(WORK)}
_NEVER: Final = 1 << 64
_LARGE: Final = 1 << 61
"""Sums of two smaller times have 64 bits."""
_EVAL: Final = "eval"

Interval: TypeAlias = tuple[Any, ...]
"""A start, an end, a kind, and the time without work, of `wall_time_of`."""


class OtherIntervals:
    """The intervals of each rank that are not units, to which its units are added."""

    def __init__(self, spans: Iterable[IndexedSpan]) -> None:
        """Of `spans`, checkpoints, evaluations and sessions count."""
        self._others: dict[int | None, list[Interval]] = {}
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

    def wall_time(
        self,
        rank: int | None,
        start: np.ndarray,
        ns: np.ndarray,
        first_ns: int | None,
        last_ns: int | None,
        warm_up: int,
    ) -> WallTime:
        """Return the wall time of a rank from its first to its last time.

        `start` and `ns` are those of its units, in order. The first `warm_up` ones are warm-up.
        """
        steady_ns = first_ns
        if warm_up:
            steady_ns = int(start[warm_up]) if warm_up < len(start) else None
        limit = last_ns if steady_ns is None else steady_ns
        others = sorted(self._others.get(rank, ()), key=_order_of)
        intervals = intervals_of(start, ns, others, limit or 0, last_ns or 0)
        return wall_time_of(intervals, first_ns, last_ns)


def _order_of(interval: Interval) -> tuple[Any, ...]:
    start, end, kind, *_ = interval
    return start is not None, start or 0, end is not None, end or 0, kind


def intervals_of(
    start: np.ndarray, ns: np.ndarray, others: list[Interval], steady_ns: int, last_ns: int
) -> Iterable[Interval]:
    """Return the intervals of a rank's units and the others, by their start.

    The units before `steady_ns` are warm-up. Consecutive units of one kind are one interval, with
    the time between them, if no unit overlaps them, and nothing else begins or ends during them.
    A unit without a duration is an interval of its own.
    """
    times = {time for begin, end, *_ in others for time in (begin, end) if time is not None}
    joined = _joined(start, ns, sorted({*times, last_ns}), steady_ns) if len(start) else []
    return heapq.merge(joined, others, key=_order_of)


def _joined(
    start: np.ndarray, ns: np.ndarray, times: list[int], steady_ns: int
) -> Iterable[Interval]:
    numbers = (*times, steady_ns, int(start[-1]), int(ns.max()))
    if max(numbers) >= _LARGE or min(*numbers, int(start[0])) <= -_LARGE:
        start, ns = start.astype(object), ns.astype(object)  # times of damaged records
    of_others = np.array(times, start.dtype)
    end = start + ns
    after = np.searchsorted(start, of_others, "right")
    is_first = np.zeros(len(start) + 1, np.bool_)
    is_first[0] = is_first[np.searchsorted(start, steady_ns)] = True
    is_first[after] = True  # another one begins or ends between two units
    during = after[after > 0] - 1
    is_first[during[end[during] > of_others[after > 0]]] = True
    if ns.min() <= 0 or (start[1:] < end[:-1]).any():
        is_alone = ns == 0
        is_alone[1:] |= start[1:] < np.maximum.accumulate(end)[:-1]  # an earlier one still runs
        is_first[:-1] |= is_alone | (ns == 0)
        is_first[1:] |= is_alone
    firsts = np.flatnonzero(is_first[:-1])
    begins, ends = start[firsts], end[np.append(firsts[1:], len(start)) - 1]
    kind = np.where(begins < steady_ns, _KIND["warm_up"], _KIND["steps"])
    columns = begins, ends, kind, ends - begins - np.add.reduceat(ns, firsts)
    return zip(*(column.tolist() for column in columns), strict=True)
