"""The figures by which `diff` compares a run with another one, apart from digests."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from ..analysis.breakdown import Breakdown
from ..analysis.mark_series import MarkSeries, series_title
from ..analysis.verdicts.comparison import block_medians
from ..analysis.verdicts.diagnosis import Diagnosis
from ..analysis.verdicts.run_window import diagnosis_of
from ..analysis.verdicts.thresholds import thresholds_of
from ..analysis.verdicts.verdict import Verdict
from .run import Run


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


def compared_run(run: Run) -> ComparedRun:
    """Return the figures of a run. Raises TargetError if there is no disk space."""
    series, left_out = run.marks
    return ComparedRun(
        [each.rank for each in run.ranks],
        run.together,
        block_medians(
            array("q", ns[run.breakdowns[rank].warm_up :].tobytes())
            for rank, _, ns in run.unit_times()
        ),
        [LastValue.of(each) for each in series],
        left_out,
        diagnosis_of(run, thresholds_of("run")),
        run.dropped_marks,
    )
