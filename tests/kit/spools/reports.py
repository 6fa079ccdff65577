"""Reports of batches, read in both ways: in one pass, and from columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cirron_otel.core.analysis.breakdown import STEP, UNATTRIBUTED
from cirron_otel.core.analysis.run_report import RunReport
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import ABSENT, rows
from cirron_otel.core.run.report import report_of
from cirron_otel.core.run.run import Run
from cirron_otel.core.spool.reader import BatchFile
from tests.kit.phase_times import PhaseTimes, TimedBreakdown


def reported(
    batches: Iterable[BatchFile], reader: Any = None, *, slowest: int = 10, durations: bool = False
) -> RunReport:
    """Return the report of some batches; that from columns is equal.

    With `durations`, the ranks have the durations of all units and phases.
    """
    reports = []
    for in_columns in (False, True):
        with open_run(batches, reader, slowest=slowest, in_columns=in_columns) as run:
            report = report_of(run)
            expected = breakdowns(run)
            assert expected.keys() == {e.rank for e in report.ranks if e.steps.steps.times}
            for rank in report.ranks:
                complete = expected.get(rank.rank)
                if complete is None:
                    complete = TimedBreakdown(PhaseTimes(STEP), [], PhaseTimes(UNATTRIBUTED))
                assert complete.figures() == rank.steps
                assert complete.to_json() == rank.steps.to_json()
                if durations:
                    rank.steps = complete
        reports.append(report)
    assert reports[0].to_json() == reports[1].to_json()
    return reports[0]


def breakdowns(run: Run) -> dict[int | None, TimedBreakdown]:
    """Return the units of each rank with all durations, added up one by one."""
    steps: dict[int | None, tuple[PhaseTimes, PhaseTimes]] = {}
    names: dict[int | None, dict[str, PhaseTimes]] = {}
    for units, parts in run.recording.unit_blocks():
        inside = rows(parts, "unit", "name", "ns")
        for no, of_rank, ns, count in rows(units, "no", "rank", "ns", "parts"):
            rank = None if of_rank == ABSENT else of_rank
            if rank not in steps:
                steps[rank] = PhaseTimes(STEP), PhaseTimes(UNATTRIBUTED)
            left = ns
            for _ in range(count):
                unit, token, part_ns = next(inside)
                assert unit == no
                name = run.recording.texts.text(token) or "?"
                of_name = names.setdefault(rank, {})
                of_name.setdefault(name, PhaseTimes(name)).durations.append(part_ns)
                left -= part_ns
            steps[rank][0].durations.append(ns)
            steps[rank][1].durations.append(left)
    return {
        rank: TimedBreakdown(of_units, list(names.get(rank, {}).values()), rest)
        for rank, (of_units, rest) in steps.items()
    }
