"""The figures of one run, which a report over many runs sums up."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from .index import SpoolIndex, id_of, run_index
from .run_catalogue import CataloguedRun
from .run_keys import FRAMEWORK, MODEL, MOST_CHARACTERS, VERDICT, Values
from .run_report import rank_reports
from .run_time import ROWS, RankReport, Row
from .run_traces import records_of
from .sessions import assign_sessions
from .step_tables import create_step_tables
from .verdicts.reading import diagnose_index
from .verdicts.thresholds import Thresholds

_FORWARD: Final = (
    "SELECT id FROM span WHERE name = 'forward' AND id IS NOT NULL ORDER BY no LIMIT 1"
)
_SESSION: Final = "SELECT key FROM session WHERE state <> 'none' ORDER BY start_ns, no LIMIT 1"
_LOOKUPS: Final = {MODEL: (_FORWARD, "module"), FRAMEWORK: (_SESSION, "framework")}
"""The query of a span, and its attribute."""
_OF_PHASES: Final = "SELECT gpu_ns FROM phase WHERE gpu_ns IS NOT NULL"
_OF_STEPS: Final = """
SELECT max(span.gpu_ns, 0) FROM step JOIN span USING (no) WHERE span.gpu_ns IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM phase WHERE phase.step = step.no AND phase.gpu_ns IS NOT NULL)
"""
_HAS_STEPS: Final = "SELECT EXISTS (SELECT 1 FROM step) OR EXISTS (SELECT 1 FROM summary)"


@dataclass(slots=True)
class RunFigures:
    """The figures of one run."""

    spans: int = 0
    rank_ns: int = 0
    """The wall time of all ranks, without the pauses between their sessions, ns."""
    gpu_ns: int | None = None
    """The device time of the steps; None if none is measured."""
    time: dict[Row, int] = field(default_factory=lambda: dict.fromkeys(ROWS, 0))
    """The same wall time by row, ns."""
    step_ns: array[int] = field(default_factory=lambda: array("q"))
    """The duration of each step of each rank."""
    phase_ns: dict[str, int] = field(default_factory=dict)
    unattributed_ns: int = 0
    verdicts: list[str] = field(default_factory=list)
    """The kinds of the run's verdicts, each once, the primary one first."""
    values: dict[str, Values] = field(default_factory=dict)
    """The values of the keys that the run's records contain, rather than its resource."""


def run_figures(catalogued: CataloguedRun, keys: Iterable[str], limits: Thresholds) -> RunFigures:
    """Read a run and return its figures, and the values of `keys` in its records.

    Raises the errors of reading the batches, and TargetError if there is no disk space.
    """
    with run_index(catalogued.batches()) as index:
        assign_sessions(index)
        create_step_tables(index)
        figures = RunFigures(spans=index.one("SELECT count(*) FROM span"))
        ranks = index.one("SELECT count(DISTINCT rank) FROM span")
        for each in rank_reports(index, keeps_durations=True):
            _add_steps(figures, each)
            # If there are ranks, spans without a rank are those of the job's own process.
            if each.rank is not None or not ranks:
                _add_time(figures, each)
        device = [ns for query in (_OF_PHASES, _OF_STEPS) for (ns,) in index.rows(query)]
        figures.gpu_ns = sum(device) if device else None
        if index.one(_HAS_STEPS):
            diagnosis = diagnose_index(index, limits, catalogued.run.world_size)
            figures.verdicts = list(dict.fromkeys(each.kind for each in diagnosis.verdicts))
        for key in keys:
            figures.values[key] = _value(key, index, catalogued, figures)
        return figures


def _add_steps(figures: RunFigures, rank: RankReport) -> None:
    figures.step_ns.extend(rank.steps.steps.durations)
    for phase in rank.steps.phases:
        figures.phase_ns[phase.name] = figures.phase_ns.get(phase.name, 0) + phase.total_ns
    figures.unattributed_ns += rank.steps.unattributed.total_ns


def _add_time(figures: RunFigures, rank: RankReport) -> None:
    for row in ROWS:
        figures.time[row] += rank.time.rows[row]
    figures.rank_ns += rank.time.total_ns - rank.time.rows["pauses"]


def _value(key: str, index: SpoolIndex, catalogued: CataloguedRun, figures: RunFigures) -> Values:
    if key == VERDICT:
        return tuple(figures.verdicts[:1])
    query, name = _LOOKUPS[key]
    span = index.one(query)
    records = records_of(index, catalogued, [id_of(span)]) if span is not None else {}
    for record in records.values():
        attributes = record.get("attrs")
        value = attributes.get(name) if isinstance(attributes, dict) else None
        if isinstance(value, str) and value:
            return (value[:MOST_CHARACTERS],)
    return ()
