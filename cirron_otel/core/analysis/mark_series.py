"""The marks of a run as series, one for each name and rank, and the points of series for charts.

A chart shows at most a given number of points. If a series of marks or step durations has more
records, each point represents several consecutive records, nearly the same number for all points.
It contains their minimum, median and maximum, so that no outlier is lost.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ..records.rows import number_of, shown

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

    def add(self, value: str | None, epoch: str | None = None) -> None:
        """Add the next value."""
        if not self.count:
            self.first = value
        self.count, self.last = self.count + 1, value
        number = number_of(value)
        if number is not None:
            self.numbers += 1
            self.min = number if self.min is None else min(self.min, number)
            self.max = number if self.max is None else max(self.max, number)
            if epoch is not None:
                self._add_to(epoch, number)

    def add_numbers(self, numbers: Sequence[float], epochs: Sequence[str | None]) -> None:
        """Add the next values, which are all finite numbers; at least one."""
        if not self.count:
            self.first = shown(numbers[0])
        self.last = shown(numbers[-1])
        self.count += len(numbers)
        self.numbers += len(numbers)
        low, high = min(numbers), max(numbers)
        self.min = low if self.min is None else min(self.min, low)
        self.max = high if self.max is None else max(self.max, high)
        place = 0
        for epoch, same in groupby(epochs):
            end = place + sum(1 for _ in same)
            if epoch is not None:
                self._add_all(epoch, numbers[place:end])
            place = end

    def _add_all(self, epoch: str, numbers: Sequence[float]) -> None:
        self._add_to(epoch, numbers[0])
        last = self.epochs[-1]
        if last.epoch != epoch:
            return  # there are too many epochs
        count, mean = last.count, last.mean
        for number in numbers[1:]:
            count += 1
            mean += (number - mean) / count
        last.count, last.mean = count, mean

    def _add_to(self, epoch: str, number: float) -> None:
        if not self.epochs or self.epochs[-1].epoch != epoch:
            if len(self.epochs) >= MAX_SERIES:
                return
            self.epochs.append(EpochMean(epoch))
        last = self.epochs[-1]
        last.count += 1
        last.mean += (number - last.mean) / last.count


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
