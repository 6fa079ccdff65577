"""The figures of one run, which a report over many runs sums up."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ..analysis.run_catalogue import CataloguedRun
from ..analysis.run_keys import FRAMEWORK, MODEL, MOST_CHARACTERS, VERDICT, Values
from ..analysis.run_time import ROWS, RankReport, Row
from ..analysis.verdicts.thresholds import Thresholds
from ..records.verbatim import record_at, span_records
from .opening import open_run
from .run import Run

_ATTRIBUTES: Final = {MODEL: "module", FRAMEWORK: "framework"}
"""The attribute of the first forward pass, and that of the first session."""


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
    with open_run(catalogued) as run:
        figures = RunFigures(spans=run.spans)
        has_ranks = any(each.rank is not None for each in run.ranks)
        for _, _, durations in run.unit_times():
            figures.step_ns.frombytes(durations.tobytes())
        for each in run.ranks:
            _add_phases(figures, each)
            # If there are ranks, spans without a rank are those of the job's own process.
            if each.rank is not None or not has_ranks:
                _add_time(figures, each)
        figures.gpu_ns = run.device_ns
        diagnosis = run.diagnosis(limits, catalogued.run.world_size)
        if diagnosis is not None:
            figures.verdicts = list(dict.fromkeys(each.kind for each in diagnosis.verdicts))
        for key in keys:
            figures.values[key] = _value(key, run, catalogued, figures)
        return figures


def _add_phases(figures: RunFigures, rank: RankReport) -> None:
    for phase in rank.steps.phases:
        figures.phase_ns[phase.name] = figures.phase_ns.get(phase.name, 0) + phase.total_ns
    figures.unattributed_ns += rank.steps.unattributed.total_ns


def _add_time(figures: RunFigures, rank: RankReport) -> None:
    for row in ROWS:
        figures.time[row] += rank.time.rows[row]
    figures.rank_ns += rank.time.total_ns - rank.time.rows["pauses"]


def _value(key: str, run: Run, catalogued: CataloguedRun, figures: RunFigures) -> Values:
    if key == VERDICT:
        return tuple(figures.verdicts[:1])
    number = run.recording.first_forward() if key == MODEL else _first_session(run)
    place = None if number is None else run.recording.place_of(number)
    batch = None if place is None else catalogued.read(place.file, check=False)
    if place is None or batch is None:
        return ()
    record = record_at(span_records(batch.data), place.position)
    attributes = None if record is None else record.get("attrs")
    value = attributes.get(_ATTRIBUTES[key]) if isinstance(attributes, dict) else None
    return (value[:MOST_CHARACTERS],) if isinstance(value, str) and value else ()


def _first_session(run: Run) -> int | None:
    """Return the number of the span of the session that began first."""
    for session in run.sessions:
        found = run.recording.tree.numbered(session.id)
        if session.id is not None:
            return None if found is None else found[0]
    return None
