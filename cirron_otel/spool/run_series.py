"""The course of a run in a bounded number of points: the time of its steps, and its marks.

A series is cut into parts of as many records each as it takes to stay below a limit; the point of a
part has the least, the middle and the greatest of them, so that no outlier is lost.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ..semconv import OVERHEAD_NS
from .index import SpoolIndex
from .rows import number_of
from .run_report import MarkSeries

_STEPS = "SELECT ns FROM step WHERE rank IS ? ORDER BY start_ns, no"
# The order of the report's series, and of the records in them.
_MARKS = """
SELECT span.rank, coalesce(nullif(mark.name, ''), '?') AS named, mark.value
FROM mark LEFT JOIN span ON span.id = mark.span
WHERE mark.name IS NOT ? ORDER BY named, span.rank, mark.ts_ns, mark.no
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


def step_points(index: SpoolIndex, rank: int | None, count: int, limit: int) -> list[Point]:
    """The durations (ns) of the `count` steps of a rank in order of their start.

    At most `limit` points. The index must be one that `report_run` reported on.
    """
    return list(_points((row[0] for row in index.rows(_STEPS, rank)), count, limit))


def mark_points(
    index: SpoolIndex, wanted: Callable[[str, int | None], MarkSeries | None], limit: int
) -> Iterator[tuple[MarkSeries, list[Point]]]:
    """The points of the series that `wanted` gives for a name and a rank, at most `limit` each.

    They come in the order of the report's series.
    """
    rows = index.rows(_MARKS, OVERHEAD_NS)
    for (name, rank), records in groupby(rows, key=lambda row: (row[1], row[0])):
        series = wanted(name, rank)
        if series is not None:
            values = (number_of(value) for _, _, value in records)
            yield series, list(_points(values, series.count, limit))


def _points(values: Iterable[float | None], count: int, limit: int) -> Iterator[Point]:
    """`count` values in at most `limit` points, as even as can be."""
    parts = min(count, limit)
    for _, records in groupby(enumerate(values), key=lambda each: each[0] * parts // count):
        found = list(records)
        numbers = sorted(value for _, value in found if value is not None)
        point = Point(found[0][0], len(found), len(numbers))
        if numbers:
            point.low, point.high = numbers[0], numbers[-1]
            point.middle = statistics.median_low(numbers)
        yield point
