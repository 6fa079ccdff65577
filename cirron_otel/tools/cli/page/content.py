"""Gather the content of a page within limits: a page stays small for runs of any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....core.analysis.index import SpoolIndex, id_of
from ....core.analysis.mark_series import MarkSeries, Point, epoch_starts
from ....core.analysis.memory_series import DeviceMemory, memory_courses
from ....core.analysis.run_report import RunReport
from ....core.analysis.run_traces import StepTrace, records_of, scopes_of, step_traces
from ....core.analysis.summary import SessionSummary, sessions_of, with_processes
from ....core.analysis.tree import TreeLimits, TreeNode, build_tree
from ....core.records.findings import Finding
from ....core.run.run import Run
from ....core.spool.reader import SpoolReader

DRAWN_RANKS = 32
"""The maximum number of ranks with a chart of their steps and a table of their phases."""
TRACED_RANKS = 16
"""The maximum number of ranks for which individual steps are shown."""
DRAWN_MARKS = 40
DRAWN_DEVICES = 8
_MEMORY_POINTS = 200
_STEP_POINTS, _MARK_POINTS = 1600, 1200
"""The maximum number of points in all charts of steps together, and in all charts of marks."""
_MOST_STEP_POINTS, _MOST_MARK_POINTS = 200, 100
_SCOPES, _MOST_SCOPES = 1000, 150
"""The maximum number of scopes shown for all steps together, and for a single step."""
_MOST_EPOCHS = 50
"""If there are more epochs than this, the starts of epochs are not drawn."""
_TOPS, _BELOW_TOP = 24, 24
_MARKS = 12

_TOP_SCOPES = """
SELECT span.id FROM top JOIN span ON span.no = top.no WHERE span.id IS NOT NULL
ORDER BY span.start_ns, span.no LIMIT ?
"""
_COUNT_TOPS = "SELECT count(*) FROM top"
_NO_TIME = "SELECT count(*) FROM span WHERE start_ns IS NULL OR end_ns IS NULL"


@dataclass(slots=True)
class RunContent:
    """The content of the page on one run."""

    source: str
    """The source, without credentials."""
    run_name: str | None
    """The name of the run; None if the source records no run, or if several are shown together."""
    report: RunReport
    sessions: list[SessionSummary]
    versions: list[str]
    courses: list[tuple[int | None, list[Point]]]
    """The durations of the steps over time, for each rank that has steps."""
    epochs: dict[int | None, list[int]]
    """The start of each epoch of a rank, in Unix ns."""
    marks: list[tuple[MarkSeries, list[Point]]]
    """The series of marks with numeric values, with the points to draw."""
    memory: list[tuple[DeviceMemory, list[Point]]]
    """The samples of memory over time, for the first devices."""
    top_scopes: list[TreeNode]
    """The outermost scopes with their direct children."""
    tops_left_out: int
    traces: list[StepTrace]
    records: dict[str, dict[str, Any]]
    """The stored records of the scopes that are shown, by id."""
    warnings: list[str]
    findings: Sequence[Finding]


def gather(
    source: str,
    report: RunReport,
    run: Run,
    reader: SpoolReader,
    asked: Sequence[str],
    warnings: list[str],
    findings: Sequence[Finding],
    run_name: str | None = None,
) -> RunContent:
    """Gather the content of a run's page; `run` has an index, and `report` is its report.

    Raises InputError if an id in `asked` belongs to no scope, TargetError if there is no disk
    space for the index.
    """
    index = run.recording.index
    if index is None:
        raise ValueError("the run was read without an index: open it with needs_index=True")
    ranks = [each.rank for each in report.ranks if each.steps.steps.times]
    top_trees = _top_scopes(index)
    shown = min(2 * min(len(ranks), TRACED_RANKS) + len(asked), _SCOPES)
    scopes = max(min(_MOST_SCOPES, _SCOPES // max(shown, 1)), 1)
    limits = TreeLimits(spans=scopes, children=scopes, marks=_MARKS)
    traces = step_traces(index, ranks[:TRACED_RANKS], asked, limits)
    trees = [*top_trees, *(trace.step for trace in traces)]
    ids = {node.id for tree in trees for _, node in scopes_of(tree) if node.id is not None}
    sessions = sessions_of(index)
    if isinstance(reader, SpoolReader):
        sessions = with_processes(sessions, reader.paths)
    return RunContent(
        source,
        run_name,
        report,
        sessions,
        sorted(index.sdk_versions),
        _courses(run, report),
        {
            each.rank: epoch_starts(index, each.rank, _MOST_EPOCHS)
            for each in report.ranks[:DRAWN_RANKS]
        },
        _mark_courses(run, report),
        list(memory_courses(index, report.memory, DRAWN_DEVICES, _MEMORY_POINTS)),
        top_trees,
        max(index.one(_COUNT_TOPS) - len(top_trees), 0),
        traces,
        records_of(index, reader, ids),
        [*warnings, *_states(sessions), *_missing(index)],
        findings,
    )


def _courses(run: Run, report: RunReport) -> list[tuple[int | None, list[Point]]]:
    counts = {each.rank: each.steps.steps.times for each in report.ranks}
    drawn = [(rank, count) for rank, count in counts.items() if count][:DRAWN_RANKS]
    limit = min(_MOST_STEP_POINTS, _STEP_POINTS // max(len(drawn), 1))
    return [(rank, run.unit_points(rank, limit)) for rank, _ in drawn]


def _mark_courses(run: Run, report: RunReport) -> list[tuple[MarkSeries, list[Point]]]:
    drawn = {
        (each.name, each.rank, each.is_eval): each for each in report.marks if each.numbers > 1
    }
    series = dict(list(drawn.items())[:DRAWN_MARKS])
    if not series:
        return []
    limit = min(_MOST_MARK_POINTS, _MARK_POINTS // len(series))
    return list(run.mark_points(lambda *key: series.get(key), limit))


def _top_scopes(index: SpoolIndex) -> list[TreeNode]:
    """Read each tree separately, so that a tree with many scopes leaves room for the others."""
    limits = TreeLimits(spans=1 + _BELOW_TOP, children=_BELOW_TOP, marks=_MARKS, depth=2)
    trees = (build_tree(index, id_of(key), limits) for (key,) in index.rows(_TOP_SCOPES, _TOPS))
    return [each for each in trees if each is not None]


def _states(sessions: list[SessionSummary]) -> list[str]:
    phrases = {
        "open": "still running when this was read",
        "unfinished": "without an end: still running, or killed",
        "killed": "killed",
        "failed": "failed",
    }
    counts = {state: sum(each.state == state for each in sessions) for state in phrases}
    return [
        f"{count:,} {'session' if count == 1 else 'sessions'} {phrases[state]}"
        for state, count in counts.items()
        if count
    ]


def _missing(index: SpoolIndex) -> list[str]:
    without = index.one(_NO_TIME)
    return [f"{without:,} spans without a time: no figure includes them"] if without else []
