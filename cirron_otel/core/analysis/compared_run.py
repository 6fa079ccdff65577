"""The figures by which `diff` compares a run with another one, apart from digests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..spool.reader import SpoolReader
from .breakdown import Breakdown, joined
from .divergence.dropped_marks import dropped_marks
from .epochs import add_open_scopes
from .index import SpoolIndex
from .mark_series import MarkSeries, mark_series, series_title
from .run_report import diagnosis_of, rank_reports
from .sessions import assign_sessions
from .step_tables import create_step_tables
from .verdicts.comparison import block_medians
from .verdicts.diagnosis import Diagnosis
from .verdicts.verdict import Verdict


class LastValue(NamedTuple):
    """The last value of a series of marks."""

    name: str
    rank: int | None
    is_eval: bool
    """Whether the marks were created during evaluations."""
    value: str | None
    """As text; None for a mark without a value."""

    @classmethod
    def of(cls, series: MarkSeries) -> LastValue:
        """Return the last value of a series."""
        return cls(series.name, series.rank, series.is_eval, series.last)

    @property
    def title(self) -> str:
        """The name, with `(eval)` for the marks of evaluations."""
        return series_title(self.name, is_eval=self.is_eval)


@dataclass(slots=True)
class ComparedRun:
    """The figures of a run."""

    ranks: list[int | None]
    """The ranks of its spans, in order; None for spans without a rank."""
    steps: Breakdown
    """The steps of all ranks."""
    medians: list[float] | None
    """The median step of each tenth of the run, ns; None if a rank has too few steps."""
    marks: list[LastValue]
    """One entry for each of the first 1,000 series, by name and rank."""
    marks_left_out: int
    """The number of series that `marks` does not contain."""
    diagnosis: Diagnosis | None
    """The verdicts on the steps; None if the run has no steps."""
    dropped_marks: int
    """The number of marks that the recording processes dropped."""

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on the steps, the primary one first."""
        return [] if self.diagnosis is None else self.diagnosis.verdicts


def compared_run(index: SpoolIndex, reader: SpoolReader) -> ComparedRun:
    """Return the figures of a run from its index; call it at most once per index.

    `reader` reads the batches of the index. Raises TargetError if there is no disk space.
    """
    add_open_scopes(index, reader.paths)
    assign_sessions(index)
    create_step_tables(index)
    series, left_out = mark_series(index)
    ranks = list(rank_reports(index, keeps_durations=True))
    breakdowns = [each.steps for each in ranks]
    return ComparedRun(
        [each.rank for each in ranks],
        joined(breakdowns),
        block_medians(breakdowns),
        [LastValue.of(each) for each in series],
        left_out,
        diagnosis_of(index),
        dropped_marks(index, reader),
    )
