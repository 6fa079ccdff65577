"""A run's steps and marks over time, in a bounded number of points.

A series is divided into parts of nearly equal numbers of records, so that their number stays within
a limit. The point of a part has its minimum, median and maximum, so that no outlier is lost.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ..records.rows import number_of
from .index import SpoolIndex
from .mark_series import MarkSeries

_STEPS = "SELECT ns, start_ns FROM step WHERE rank IS ? ORDER BY start_ns, no"
# The order of the report's series, and of the records in them.
_MARKS = """
SELECT rank, name, is_eval, value, ts_ns FROM series ORDER BY name, rank, is_eval, ts_ns, no
"""
_EPOCHS = """
SELECT DISTINCT start_ns FROM span WHERE name = 'epoch' AND rank IS ? AND start_ns IS NOT NULL
ORDER BY start_ns LIMIT ?
"""


@dataclass(slots=True)
class Point:
    """Consecutive records of a series."""

    first: int
    """The position of the first record in the series, from 0."""
    count: int
    numbers: int
    """The number of values that are finite numbers; if it is 0, the figures are meaningless."""
    low: float = 0
    middle: float = 0
    """The median; for an even count the lower one of the two middle values."""
    high: float = 0
    begin_ns: int | None = None
    """The earliest time of the records, Unix ns."""
    end_ns: int | None = None
    """The latest time of the records, Unix ns."""


def step_points(index: SpoolIndex, rank: int | None, count: int, limit: int) -> list[Point]:
    """Return the durations (ns) of the `count` steps of a rank in order of their start.

    At most `limit` points. `report_run` must have been called with the index.
    """
    return list(_points(index.rows(_STEPS, rank), count, limit))


def epoch_starts(index: SpoolIndex, rank: int | None, limit: int) -> list[int]:
    """Return the start times of a rank's first `limit` epochs, Unix ns."""
    return [start for (start,) in index.rows(_EPOCHS, rank, limit)]


def mark_points(
    index: SpoolIndex, wanted: Callable[[str, int | None, bool], MarkSeries | None], limit: int
) -> Iterator[tuple[MarkSeries, list[Point]]]:
    """Yield the points of the wanted series in the order of the report; at most `limit` each.

    `wanted` returns the series for a name, a rank, and whether its marks are of evaluations; None
    skips it.
    """
    rows = index.rows(_MARKS)
    for (rank, name, is_eval), records in groupby(rows, key=lambda row: row[:3]):
        series = wanted(name, rank, bool(is_eval))
        if series is not None:
            values = ((number_of(row[3]), row[4]) for row in records)
            yield series, list(_points(values, series.count, limit))


def _points(
    records: Iterable[tuple[float | None, int | None]], count: int, limit: int
) -> Iterator[Point]:
    """Yield at most `limit` points of `count` values with their times, of nearly equal size."""
    parts = min(count, limit)
    for _, group in groupby(enumerate(records), key=lambda each: each[0] * parts // count):
        part = list(group)
        numbers = sorted(value for _, (value, _) in part if value is not None)
        point = Point(part[0][0], len(part), len(numbers))
        times = [at for _, (_, at) in part if at is not None]
        if times:
            point.begin_ns, point.end_ns = min(times), max(times)
        if numbers:
            point.low, point.high = numbers[0], numbers[-1]
            point.middle = statistics.median_low(numbers)
        yield point
