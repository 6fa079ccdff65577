"""The marks of a run as series, one for each name and rank, and the points of series for charts.

A chart shows at most a given number of points. If a series of marks or step durations has more
records, each point represents several consecutive records, nearly the same number for all points.
It contains their minimum, median and maximum, so that no outlier is lost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter

MAX_SERIES = 1000
"""The maximum number of series of a run, and of epochs of a series."""


@dataclass(slots=True)
class EpochMean:
    """The mean of a series' finite numbers in one epoch."""

    epoch: str
    count: int = 0
    mean: float = 0.0


def series_title(name: str, *, is_eval: bool) -> str:
    """Return the name of a series, with `(eval)` for the marks of evaluations."""
    return f"{name} (eval)" if is_eval else name


@dataclass(slots=True)
class MarkSeries:
    """The marks of one name and rank, in order of their time."""

    name: str
    rank: int | None
    count: int = 0
    first: str | None = None
    last: str | None = None
    """The first and the last value as text; None for a mark without a value."""
    numbers: int = 0
    """The number of values that are finite numbers."""
    min: float | None = None
    max: float | None = None
    is_eval: bool = False
    """Whether the marks were created during evaluations."""
    epochs: list[EpochMean] = field(default_factory=list)
    """One entry per epoch, in order of time; at most 1,000. Marks outside epochs are left out."""

    @property
    def title(self) -> str:
        """The name, with `(eval)` for the marks of evaluations."""
        return series_title(self.name, is_eval=self.is_eval)

    def add_numbers(self, numbers: Sequence[float | None], epochs: Sequence[str | None]) -> None:
        """Set the figures of all marks, of which some values are not finite numbers."""
        finite = [number for number in numbers if number is not None]
        self.count, self.numbers = len(numbers), len(finite)
        self.min, self.max = min(finite, default=None), max(finite, default=None)
        pairs = [
            (epoch, number)
            for epoch, number in zip(epochs, numbers, strict=True)
            if epoch is not None and number is not None
        ]
        for epoch, same in islice(groupby(pairs, key=itemgetter(0)), MAX_SERIES):
            self.epochs.append(_mean_of(epoch, [number for _, number in same]))


def _mean_of(epoch: str, numbers: Sequence[float]) -> EpochMean:
    try:
        mean = math.fsum(numbers) / len(numbers)
    except OverflowError:
        mean = float(statistics.mean(numbers))  # slow: it computes with fractions
    return EpochMean(epoch, len(numbers), mean)


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


def points_of(
    records: Iterable[tuple[float | None, int | None]], count: int, limit: int
) -> Iterator[Point]:
    """Divide `count` records (value, time) into at most `limit` points of nearly equal size."""
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
