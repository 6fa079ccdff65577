"""Gather the content of a page within limits: a page stays small for runs of any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....core.analysis.mark_series import MarkSeries, Point
from ....core.analysis.memory_series import DeviceMemory
from ....core.analysis.run_report import RunReport
from ....core.analysis.run_traces import records_at
from ....core.analysis.summary import SessionSummary, with_processes
from ....core.records.problems import ReadingProblem
from ....core.run.load.scopes import Scopes
from ....core.run.relations import ABSENT
from ....core.run.run import Run
from ....core.run.step_traces import StepTrace, places_of, step_traces
from ....core.run.trees import TreeLimits, TreeNode, Trees
from ....core.spool.reader import SpoolReader
from ...present.document import Document

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


@dataclass(slots=True)
class RunContent:
    """The content of the page on one run."""

    document: Document
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
    findings: Sequence[ReadingProblem]

    @property
    def report(self) -> RunReport:
        """The figures of the run."""
        return self.document.figures

    @property
    def unit(self) -> str:
        """The name of the run's units."""
        return "step" if self.document.units is None else self.document.units.name


def gather(
    document: Document,
    run: Run,
    scopes: Scopes,
    reader: SpoolReader,
    asked: Sequence[str],
    warnings: list[str],
    findings: Sequence[ReadingProblem],
) -> RunContent:
    """Gather the content of a run's page; `document` and `scopes` are those of the run.

    Raises InputError if an id in `asked` belongs to no scope.
    """
    report = document.figures
    ranks = [each.rank for each in report.ranks if each.steps.steps.times]
    tops = _top_scopes(scopes)
    shown = min(2 * min(len(ranks), TRACED_RANKS) + len(asked), _SCOPES)
    most = max(min(_MOST_SCOPES, _SCOPES // max(shown, 1)), 1)
    limits = TreeLimits(spans=most, children=most, marks=_MARKS)
    traces = step_traces(run.recording, scopes, ranks[:TRACED_RANKS], asked, limits)
    trees = [*tops, *(trace.step for trace in traces)]
    sessions = scopes.summaries()
    if isinstance(reader, SpoolReader):
        sessions = with_processes(sessions, reader.paths)
    return RunContent(
        document,
        sessions,
        sorted(scopes.sdk_versions),
        _courses(run, report),
        {each.rank: _epochs(scopes, each.rank) for each in report.ranks[:DRAWN_RANKS]},
        _mark_courses(run, report),
        list(run.memory_points(DRAWN_DEVICES, _MEMORY_POINTS)),
        tops,
        max(len(scopes.tops) - len(tops), 0),
        traces,
        records_at(reader, places_of(scopes, trees)),
        [*warnings, *_states(sessions), *_missing(scopes)],
        findings,
    )


def _epochs(scopes: Scopes, rank: int | None) -> list[int]:
    """Return the start times of a rank's first epochs, Unix ns."""
    rows = scopes.rows
    is_epoch = scopes.column("name")[rows] == scopes.texts.token("epoch")
    rows = rows[is_epoch]
    rows = rows[scopes.column("rank")[rows] == (ABSENT if rank is None else rank)]
    starts = np.unique(scopes.column("start_ns")[rows])
    first: list[int] = starts[starts != ABSENT][:_MOST_EPOCHS].tolist()
    return first


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


def _top_scopes(scopes: Scopes) -> list[TreeNode]:
    """Read each tree separately, so that a tree with many scopes leaves room for the others."""
    limits = TreeLimits(spans=1 + _BELOW_TOP, children=_BELOW_TOP, marks=_MARKS, depth=2)
    tops = scopes.tops[scopes.id[scopes.tops] >= 0]
    order = np.argsort(scopes.column("start_ns")[tops], kind="stable")[:_TOPS]
    found: list[TreeNode] = []
    for row in tops[order]:
        trees = Trees(scopes, limits)
        found += trees.grown(trees.nodes([row]))
    return found


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


def _missing(scopes: Scopes) -> list[str]:
    times = [scopes.column(each)[scopes.rows] for each in ("start_ns", "end_ns")]
    without = int(((times[0] == ABSENT) | (times[1] == ABSENT)).sum())
    return [f"{without:,} spans without a time: no figure includes them"] if without else []
