"""The report of a run."""

from __future__ import annotations

from ..analysis.run_report import RunReport
from .run import Run


def report_of(run: Run) -> RunReport:
    """Return the report of a run. Raises TargetError if there is no disk space."""
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
        run.memory,
        run.summarised,
        run.replicas,
        run.together,
    )
