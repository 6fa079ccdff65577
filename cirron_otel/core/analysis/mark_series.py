"""The marks of a run as series, one for each name and rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..records.rows import number_of
from .index import SpoolIndex

MAX_SERIES = 1000
"""The maximum number of series of a run, and of epochs of a series."""
# A series has one name, one rank, and marks of the training or of evaluations.
_SERIES = """
CREATE TABLE series (
    no INTEGER PRIMARY KEY, name TEXT, rank INTEGER, is_eval INTEGER, epoch TEXT, value TEXT,
    ts_ns INTEGER
);
INSERT INTO series
SELECT mark.no, coalesce(nullif(mark.name, ''), '?'), a.rank,
    'eval' IN (coalesce(a.name, ''), coalesce(b.name, ''), coalesce(c.name, '')),
    CASE 'epoch' WHEN a.name THEN a.idx WHEN b.name THEN b.idx WHEN c.name THEN c.idx END,
    mark.value, mark.ts_ns
FROM mark LEFT JOIN span AS a ON a.id = mark.span LEFT JOIN span AS b ON b.id = a.parent
LEFT JOIN span AS c ON c.id = b.parent
WHERE mark.name IS NOT 'cirron.overhead_ns';
"""
_MARKS = """
SELECT rank, name, is_eval, epoch, value FROM series ORDER BY name, rank, is_eval, ts_ns, no
"""


@dataclass(slots=True)
class EpochMean:
    """The mean of the numbers of one epoch."""

    epoch: str
    count: int = 0
    mean: float = 0.0


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
    """Whether the marks were made in evaluations."""
    epochs: list[EpochMean] = field(default_factory=list)
    """One entry per epoch, in order of time; at most 1,000. Marks outside epochs are left out."""

    @property
    def title(self) -> str:
        """The name, with `(eval)` for the marks of evaluations."""
        return f"{self.name} (eval)" if self.is_eval else self.name

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

    def _add_to(self, epoch: str, number: float) -> None:
        if not self.epochs or self.epochs[-1].epoch != epoch:
            if len(self.epochs) >= MAX_SERIES:
                return
            self.epochs.append(EpochMean(epoch))
        last = self.epochs[-1]
        last.count += 1
        last.mean += (number - last.mean) / last.count


def mark_series(index: SpoolIndex) -> tuple[list[MarkSeries], int]:
    """Return the first 1,000 series, and how many more there are."""
    series: list[MarkSeries] = []
    current: tuple[str, int | None, int] | None = None
    left_out = 0
    index.script(_SERIES)
    for rank, name, is_eval, epoch, value in index.rows(_MARKS):
        if (name, rank, is_eval) != current:
            current = (name, rank, is_eval)
            if len(series) < MAX_SERIES:
                series.append(MarkSeries(name, rank, is_eval=bool(is_eval)))
            else:
                left_out += 1
        if not left_out:
            series[-1].add(value, epoch)
    return series, left_out
