"""The report of a run."""

from __future__ import annotations

from ..analysis.bound import bound_of
from ..analysis.run_report import RunReport
from ..analysis.verdicts.thresholds import thresholds_of
from .run import Run


def report_of(run: Run) -> RunReport:
    """Return the report of a run. Raises TargetError if there is no disk space."""
    bound, straggler = bound_of(run.ranks)
    marks, left_out = run.marks
    return RunReport(
        run.spans,
        run.ranks,
        run.slowest,
        marks,
        left_out,
        run.gpu,
        run.failures,
        run.drops,
        bound,
        straggler,
        run.memory,
        run.diagnosis(thresholds_of("run")),
        run.summarised,
        run.replicas,
        run.together,
    )
