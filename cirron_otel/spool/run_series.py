"""The course of a run over its time, in a bounded number of points: its steps, and its marks.

A series is cut into parts of as many records each as it takes to stay below a limit; the point of a
part has the least, the middle and the greatest of them, so that no outlier is lost.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from .index import SpoolIndex
from .mark_series import MarkSeries
from .rows import number_of

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
    """Some records of a series that follow one another."""

    first: int
    """The place of the first of them in the series, from 0."""
    count: int
    numbers: int
    """How many of them are finite numbers: where none is, the figures say nothing."""
    low: float = 0
    middle: float = 0
    """The median; of an even count the lower one of the two in the middle."""
    high: float = 0
    begin_ns: int | None = None
    """When the first of them was recorded, Unix ns."""
    end_ns: int | None = None
    """When the last of them was."""


def step_points(index: SpoolIndex, rank: int | None, count: int, limit: int) -> list[Point]:
    """The durations (ns) of the `count` steps of a rank in order of their start.

    At most `limit` points. The index must be one that `report_run` reported on.
    """
    return list(_points(index.rows(_STEPS, rank), count, limit))


def epoch_starts(index: SpoolIndex, rank: int | None, limit: int) -> list[int]:
    """When the epochs of a rank began, Unix ns; the first `limit`."""
    return [start for (start,) in index.rows(_EPOCHS, rank, limit)]


def mark_points(
    index: SpoolIndex, wanted: Callable[[str, int | None, bool], MarkSeries | None], limit: int
) -> Iterator[tuple[MarkSeries, list[Point]]]:
    """The points of the series that `wanted` gives for a name, a rank and whether it is of
    evaluations; at most `limit` each.

    They come in the order of the report's series.
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
    """`count` values with their times, in at most `limit` points, as even as can be."""
    parts = min(count, limit)
    for _, group in groupby(enumerate(records), key=lambda each: each[0] * parts // count):
        found = list(group)
        numbers = sorted(value for _, (value, _) in found if value is not None)
        point = Point(found[0][0], len(found), len(numbers))
        times = [at for _, (_, at) in found if at is not None]
        if times:
            point.begin_ns, point.end_ns = min(times), max(times)
        if numbers:
            point.low, point.high = numbers[0], numbers[-1]
            point.middle = statistics.median_low(numbers)
        yield point
