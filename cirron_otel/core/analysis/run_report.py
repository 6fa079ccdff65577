"""The report of a run: each rank's steps by phase, the slowest steps, the marks and the failures.

The sessions of a rank are treated as one. All records are in an index on disk; memory holds the
figures of each rank, and the durations of one rank's scopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..spool.reader import SpoolReader
from .bound import RunBound, Straggler, bound_of
from .breakdown import STEP, UNATTRIBUTED, Breakdown, PhaseTimes
from .divergence.observed_steps import create_digest_tables
from .divergence.replicas import ReplicaComparison, compare_replicas
from .divergence.tensors import RunDigests
from .epochs import add_open_scopes
from .failures import SessionFailure, failures_of
from .index import SpoolIndex, id_of
from .mark_series import MAX_SERIES, MarkSeries, mark_series
from .memory_series import MemoryReport, memory_report
from .metrics import LossMetric, losses
from .run_time import RankReport, create_intervals, wall_time
from .run_traces import BatchLookup, records_of
from .sessions import assign_sessions
from .step_tables import create_step_tables, step_times_of, step_times_of_rank
from .summary import SessionSummary, sessions_of, with_processes
from .verdicts.diagnosis import Diagnosis
from .verdicts.reading import diagnose_index
from .verdicts.thresholds import thresholds_of
from .verdicts.verdict import Verdict
from .verdicts.window import WindowSteps

PREFIX = "drops."
"""The prefix of the session attributes that count drops by reason."""
_MOST = 1000


@dataclass(slots=True)
class Drop:
    """The drops of one session for one reason."""

    session: str
    rank: int | None
    reason: str
    """A key of `health()["drops"]`."""
    count: int


def drops_of(
    index: SpoolIndex, reader: BatchLookup, sessions: Iterable[SessionSummary]
) -> list[Drop]:
    """Return the drops of the sessions, at most 1,000."""
    ranks = {each.id: each.ranks for each in sessions if each.id is not None}
    return drops_in(records_of(index, reader, list(ranks)[:_MOST]), ranks)


def drops_in(
    records: Mapping[str, dict[str, Any]], ranks: Mapping[str, Sequence[int]]
) -> list[Drop]:
    """Return the drops in the records of sessions, at most 1,000; `ranks` are those of each."""
    drops = []
    for session, record in records.items():
        attributes = record.get("attrs")
        for name, value in attributes.items() if isinstance(attributes, dict) else ():
            if name.startswith(PREFIX) and type(value) is int and value > 0:
                rank = ranks[session][0] if ranks[session] else None
                drops.append(Drop(session, rank, name.removeprefix(PREFIX)[:100], value))
    return drops[:_MOST]


SCHEMA_VERSION = 1
"""The version of the JSON document (docs/report.schema.json); it changes if a key changes."""

_RANKS = """
SELECT rank, count(*), min(start_ns), max(end_ns),
    coalesce(sum(max(end_ns - start_ns, 0)) FILTER (WHERE name = 'recompute'), 0)
FROM span GROUP BY rank ORDER BY rank
"""
_SLOWEST = """
SELECT no, id, parent, rank, idx, start_ns FROM step ORDER BY ns DESC, no LIMIT ?
"""
_ABOVE = "SELECT name, idx, parent FROM span WHERE id = ? LIMIT 1"
_GPU = """
SELECT rank, coalesce(nullif(name, ''), '?') AS named, count(*), total(max(gpu_ns, 0)),
    total(max(coalesce(end_ns - start_ns, 0), 0))
FROM span WHERE gpu_ns IS NOT NULL GROUP BY rank, named ORDER BY rank, 4 DESC, named LIMIT ?
"""
_SUMMARISED = "SELECT count(*) FROM span WHERE origin = id"
_EPOCH = "epoch"
_MOST_LEVELS = 64


@dataclass(slots=True)
class SlowStep:
    """One of the slowest steps."""

    span_id: str | None
    rank: int | None
    epoch: str | None
    """The index of the step's epoch; None if it has no epoch, or if the epoch was not recorded."""
    index: str | None
    start_ns: int | None
    duration_ns: int
    phases: dict[str, int]
    """The time of each phase, ns."""


@dataclass(slots=True)
class GpuTime:
    """The total device time of a rank's scopes with one name.

    Scopes without a measured device time are not counted.
    """

    rank: int | None
    name: str
    count: int
    gpu_ns: int
    wall_ns: int
    """The host time of the same scopes, ns."""


@dataclass(slots=True)
class RunReport:
    """The report of a run, or of all runs of a spool."""

    spans: int
    ranks: list[RankReport]
    slowest_steps: list[SlowStep]
    marks: list[MarkSeries] = field(default_factory=list)
    """The first 1,000 series, by name and rank."""
    marks_left_out: int = 0
    """The number of series that `marks` does not contain."""
    gpu: list[GpuTime] = field(default_factory=list)
    """By rank, the longest first; at most 1,000."""
    failures: list[SessionFailure] = field(default_factory=list)
    """Sessions that failed or were killed; the first to fail comes first."""
    drops: list[Drop] = field(default_factory=list)
    """The records that the recording processes dropped."""
    bound: RunBound | None = None
    straggler: Straggler | None = None
    memory: MemoryReport = field(default_factory=MemoryReport)
    diagnosis: Diagnosis | None = None
    """The verdicts on the steps; None if the run has no steps."""
    summarised_steps: int = 0
    """The number of steps that an export budget sent as summaries (docs/scaling.md)."""
    replicas: ReplicaComparison | None = None
    """The comparison of ranks by their weights; None if no ranks have equal weights."""
    together: Breakdown | None = None
    """The steps of all ranks, if they were computed: `to_json` does not contain them."""

    @property
    def primary(self) -> Verdict | None:
        """The primary verdict on the steps; None if the run has no steps."""
        return None if self.diagnosis is None else self.diagnosis.primary

    @property
    def metrics(self) -> list[LossMetric]:
        """The losses among the marks."""
        return losses(self.marks)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object; times in ns."""
        return {
            "schema_version": SCHEMA_VERSION,
            "spans": self.spans,
            "summarised_steps": self.summarised_steps,
            "failures": [each.to_json() for each in self.failures],
            "verdict": self.bound.to_json() if self.bound is not None else None,
            "primary_verdict": self.primary.to_json() if self.primary is not None else None,
            "straggler": asdict(self.straggler) if self.straggler is not None else None,
            "replicas": self.replicas.to_json() if self.replicas is not None else None,
            "drops": [asdict(each) for each in self.drops],
            "ranks": [each.to_json() for each in self.ranks],
            "slowest_steps": [asdict(each) for each in self.slowest_steps],
            "metrics": [asdict(each) for each in self.metrics],
            "marks": [asdict(each) for each in self.marks],
            "marks_left_out": self.marks_left_out,
            "gpu": [asdict(each) for each in self.gpu],
            "memory": self.memory.to_json(),
        }


def report_run(
    index: SpoolIndex,
    slowest: int = 10,
    reader: SpoolReader | None = None,
    *,
    keeps_durations: bool = False,
) -> RunReport:
    """Return the report of an index from `run_index`; call it at most once per index.

    The report lists the `slowest` steps of all ranks, the slowest first. Attributes, events and the
    state of processes are read through `reader`. With `keeps_durations`, the ranks have the
    durations of all steps and phases. Raises TargetError if there is no disk space.
    """
    assign_sessions(index)
    sessions = sessions_of(index)
    if reader is not None:
        add_open_scopes(index, reader.paths)
        # A process without a batch may belong to a run other than the one being read.
        sessions = with_processes(sessions, reader.paths, adds=reader.only is None)
    create_step_tables(index)
    create_digest_tables(index)
    marks, left_out = mark_series(index)
    ranks = list(rank_reports(index, keeps_durations=keeps_durations))
    bound, straggler = bound_of(ranks)
    return RunReport(
        index.one("SELECT count(*) FROM span"),
        ranks,
        [_slow(index, row) for row in index.rows(_SLOWEST, slowest)],
        marks,
        left_out,
        [
            GpuTime(rank, name, times, int(gpu_ns), int(wall_ns))
            for rank, name, times, gpu_ns, wall_ns in index.rows(_GPU, MAX_SERIES)
        ],
        failures_of(index, reader, sessions),
        drops_of(index, reader, sessions) if reader is not None else [],
        bound,
        straggler,
        memory_report(index),
        diagnosis_of(index),
        index.one(_SUMMARISED) if index.has_summaries else 0,
        None if reader is None else compare_replicas(RunDigests(index, reader)),
    )


def diagnosis_of(index: SpoolIndex, steps: WindowSteps | None = None) -> Diagnosis | None:
    """Return the verdicts on a run; None if it has neither steps nor a summary of them.

    `steps` are the aligned steps, if they are not in the index.
    """
    if steps is None and not index.one(
        "SELECT EXISTS (SELECT 1 FROM step) OR EXISTS (SELECT 1 FROM summary)"
    ):
        return None
    return diagnose_index(index, thresholds_of("run"), steps=steps)


def rank_reports(index: SpoolIndex, *, keeps_durations: bool) -> Iterator[RankReport]:
    """Yield the report of each rank, after `create_step_tables`; call it at most once per index."""
    create_intervals(index)
    for rank, spans, first_ns, last_ns, recompute_ns in index.rows(_RANKS):
        steps = _breakdown(index, rank)
        time = wall_time(index, rank, first_ns, last_ns, steps.warm_up)
        if not keeps_durations:
            steps = steps.figures()
        yield RankReport(rank, spans, first_ns, last_ns, steps, time, int(recompute_ns))


def _breakdown(index: SpoolIndex, rank: int | None) -> Breakdown:
    steps, unattributed = PhaseTimes(STEP), PhaseTimes(UNATTRIBUTED)
    phases: dict[str, PhaseTimes] = {}
    for step in step_times_of_rank(index, rank):
        steps.durations.append(step.ns)
        unattributed.durations.append(step.unattributed_ns)
        for phase in step.phases:
            phases.setdefault(phase.name, PhaseTimes(phase.name)).durations.append(phase.ns)
    return Breakdown(steps, list(phases.values()), unattributed)


def _slow(index: SpoolIndex, row: tuple[Any, ...]) -> SlowStep:
    number, key, parent, rank, step, start_ns = row
    times = step_times_of(index, number)
    named = id_of(key) if key is not None else None
    epoch = _epoch_above(index, parent)
    return SlowStep(named, rank, epoch, step, start_ns, times.ns, times.totals())


def _epoch_above(index: SpoolIndex, parent: bytes | None) -> str | None:
    for _ in range(_MOST_LEVELS):
        row = next(index.rows(_ABOVE, parent), None) if parent is not None else None
        if row is None:
            return None
        name, position, parent = row
        if name == _EPOCH:
            return str(position) if position is not None else None
    return None
