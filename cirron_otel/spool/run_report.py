"""What a run spent its time on: the steps of each rank by phase, the slowest ones, and the marks.

Whatever the spool holds is looked at together, all sessions of a rank as one. Memory is an index on
disk, and the durations of one rank's scopes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..semconv import OVERHEAD_NS
from .breakdown import STEP, Breakdown, Phase
from .index import SpoolIndex, id_of
from .reader import BatchFile
from .rows import number_of

_ONCE = """
DELETE FROM span WHERE id IS NOT NULL AND no NOT IN (
    SELECT min(no) FROM span WHERE id IS NOT NULL GROUP BY id
);
DELETE FROM mark WHERE id IS NOT NULL AND no NOT IN (
    SELECT min(no) FROM mark WHERE id IS NOT NULL GROUP BY id
);
CREATE INDEX span_process ON span (rank, pid, thread_id, start_ns);
"""
# A step within a step, at any depth, belongs to that one.
_STEPS = """
CREATE TABLE step (
    no INTEGER PRIMARY KEY, id BLOB UNIQUE, parent BLOB, rank INTEGER, idx TEXT, start_ns INTEGER,
    ns INTEGER
);
INSERT INTO step
SELECT no, id, parent, rank, idx, start_ns, max(end_ns - start_ns, 0) FROM span
WHERE name = 'step' AND end_ns - start_ns IS NOT NULL ORDER BY no;
DELETE FROM step WHERE no IN (
    WITH RECURSIVE inside (id) AS (
        SELECT id FROM step WHERE id IS NOT NULL
        UNION SELECT span.id FROM span JOIN inside ON span.parent = inside.id
    )
    SELECT step.no FROM step JOIN inside ON step.parent = inside.id AND step.parent IS NOT step.id
);
CREATE TABLE phase (no INTEGER PRIMARY KEY, step INTEGER, name TEXT, ns INTEGER);
INSERT INTO phase
SELECT span.no, step.no, coalesce(nullif(span.name, ''), '?'), max(span.end_ns - span.start_ns, 0)
FROM span JOIN step ON span.parent = step.id AND span.no <> step.no
WHERE span.name IS NOT 'micro_step' AND span.end_ns - span.start_ns IS NOT NULL;
INSERT OR IGNORE INTO phase
SELECT span.no, step.no, coalesce(nullif(span.name, ''), '?'), max(span.end_ns - span.start_ns, 0)
FROM span JOIN span AS micro ON span.parent = micro.id AND micro.name = 'micro_step'
JOIN step ON micro.parent = step.id
WHERE span.end_ns - span.start_ns IS NOT NULL;
CREATE INDEX step_rank ON step (rank);
CREATE INDEX phase_step ON phase (step);
"""
_RANKS = """
SELECT rank, count(*), min(start_ns), max(end_ns) FROM span GROUP BY rank ORDER BY rank
"""
_BY_STEP = """
SELECT step.no, step.ns, phase.name, phase.ns FROM step LEFT JOIN phase ON phase.step = step.no
WHERE step.rank IS ? ORDER BY step.no, phase.no
"""
_SLOWEST = """
SELECT no, id, parent, rank, idx, start_ns, ns FROM step ORDER BY ns DESC, no LIMIT ?
"""
_ABOVE = "SELECT name, idx, parent FROM span WHERE id = ? LIMIT 1"
_PHASES = "SELECT name, ns FROM phase WHERE step = ? ORDER BY no"
_MARKS = """
SELECT span.rank, coalesce(nullif(mark.name, ''), '?') AS named, mark.value
FROM mark LEFT JOIN span ON span.id = mark.span
WHERE mark.name IS NOT ? ORDER BY named, span.rank, mark.ts_ns, mark.no
"""
_GPU = """
SELECT rank, coalesce(nullif(name, ''), '?') AS named, count(*), total(max(gpu_ns, 0)),
    total(max(coalesce(end_ns - start_ns, 0), 0))
FROM span WHERE gpu_ns IS NOT NULL GROUP BY rank, named ORDER BY rank, 4 DESC, named LIMIT ?
"""
_EPOCH = "epoch"
_MOST_LEVELS = 64
_MAX_SERIES = 1000


@dataclass(slots=True)
class RankReport:
    """What one rank did."""

    rank: int | None
    """None for what states none."""
    spans: int
    first_ns: int | None
    last_ns: int | None
    """The earliest start and the latest end of its spans, Unix ns."""
    steps: Breakdown

    @property
    def run_ns(self) -> int | None:
        """From the first start to the last end, pauses between sessions included."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return self.last_ns - self.first_ns

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the breakdown's keys stand in it."""
        return {
            "rank": self.rank,
            "spans": self.spans,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "run_ns": self.run_ns,
            **self.steps.to_json(),
        }


@dataclass(slots=True)
class SlowStep:
    """One of the slowest steps."""

    span_id: str | None
    rank: int | None
    epoch: str | None
    """The index of the epoch that it is in; None where it is in none, or that was not recorded."""
    index: str | None
    start_ns: int | None
    duration_ns: int
    phases: dict[str, int]
    """The time of each phase in it, ns."""


@dataclass(slots=True)
class MarkSeries:
    """The marks of one name and rank, in order of their time."""

    name: str
    rank: int | None
    count: int = 0
    first: str | None = None
    last: str | None = None
    """Values as text; None where there is none."""
    numbers: int = 0
    """How many values are finite numbers."""
    min: float | None = None
    max: float | None = None

    def add(self, value: str | None) -> None:
        """Take the next value."""
        if not self.count:
            self.first = value
        self.count, self.last = self.count + 1, value
        number = number_of(value)
        if number is not None:
            self.numbers += 1
            self.min = number if self.min is None else min(self.min, number)
            self.max = number if self.max is None else max(self.max, number)


@dataclass(slots=True)
class GpuTime:
    """What the scopes of one name took on the device, as far as they have a time of it."""

    rank: int | None
    name: str
    count: int
    gpu_ns: int
    wall_ns: int
    """What the same scopes took on the host."""


@dataclass(slots=True)
class RunReport:
    """What a spool says of its runs."""

    spans: int
    ranks: list[RankReport]
    slowest_steps: list[SlowStep]
    marks: list[MarkSeries] = field(default_factory=list)
    """The first 1,000 series, by name and rank."""
    marks_left_out: int = 0
    """How many more series there are."""
    gpu: list[GpuTime] = field(default_factory=list)
    """By rank, the longest first; at most 1,000."""

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object; times in ns."""
        return {
            "spans": self.spans,
            "ranks": [each.to_json() for each in self.ranks],
            "slowest_steps": [asdict(each) for each in self.slowest_steps],
            "marks": [asdict(each) for each in self.marks],
            "marks_left_out": self.marks_left_out,
            "gpu": [asdict(each) for each in self.gpu],
        }


def run_index(batches: Iterable[BatchFile]) -> SpoolIndex:
    """The records of batches (a SpoolReader gives those of a spool), each once.

    A context manager, which removes the index.

    What is there twice (a child that was forked had what its parent had) is taken as it was first
    read. Raises what reading them does, and TargetError where there is no room.
    """
    index = SpoolIndex()
    try:
        index.load(batches).script(_ONCE)
    except BaseException:
        index.connection.close()
        raise
    return index


def report_run(index: SpoolIndex, slowest: int = 10) -> RunReport:
    """The report of what is in a `run_index`: once for an index.

    The `slowest` steps of all ranks are listed, the slowest first. Raises TargetError where the
    index has no room.
    """
    index.script(_STEPS)
    marks, left_out = _series(index)
    return RunReport(
        index.one("SELECT count(*) FROM span"),
        [
            RankReport(rank, spans, first_ns, last_ns, _breakdown(index, rank))
            for rank, spans, first_ns, last_ns in index.rows(_RANKS)
        ],
        [_slow(index, row) for row in index.rows(_SLOWEST, slowest)],
        marks,
        left_out,
        [
            GpuTime(rank, name, times, int(gpu_ns), int(wall_ns))
            for rank, name, times, gpu_ns, wall_ns in index.rows(_GPU, _MAX_SERIES)
        ],
    )


def _breakdown(index: SpoolIndex, rank: int | None) -> Breakdown:
    steps, rest = Phase(STEP), Phase("unattributed")
    phases: dict[str, Phase] = {}
    current = None
    for number, step_ns, name, ns in index.rows(_BY_STEP, rank):
        if number != current:
            current = number
            steps.durations.append(int(step_ns))
            rest.durations.append(int(step_ns))
        if ns is not None:
            each = phases.setdefault(name, Phase(name))
            each.durations.append(int(ns))
            rest.durations[-1] -= int(ns)
    return Breakdown(steps, list(phases.values()), rest)


def _slow(index: SpoolIndex, row: tuple[Any, ...]) -> SlowStep:
    number, key, parent, rank, step, start_ns, ns = row
    phases: dict[str, int] = defaultdict(int)
    for name, phase_ns in index.rows(_PHASES, number):
        phases[name] += int(phase_ns)
    named = id_of(key) if key is not None else None
    epoch = _epoch_above(index, parent)
    return SlowStep(named, rank, epoch, step, start_ns, int(ns), dict(phases))


def _epoch_above(index: SpoolIndex, parent: bytes | None) -> str | None:
    for _ in range(_MOST_LEVELS):
        found = next(index.rows(_ABOVE, parent), None) if parent is not None else None
        if found is None:
            return None
        name, position, parent = found
        if name == _EPOCH:
            return str(position) if position is not None else None
    return None


def _series(index: SpoolIndex) -> tuple[list[MarkSeries], int]:
    """The first series, and how many more there are."""
    series: list[MarkSeries] = []
    current: tuple[str, int | None] | None = None
    left_out = 0
    for rank, name, value in index.rows(_MARKS, OVERHEAD_NS):
        if (name, rank) != current:
            current = (name, rank)
            if len(series) < _MAX_SERIES:
                series.append(MarkSeries(name, rank))
            else:
                left_out += 1
        if not left_out:
            series[-1].add(value)
    return series, left_out
