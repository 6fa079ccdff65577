"""What a run spent its time on: the steps of each rank by phase, the slowest ones, and the marks.

Whatever the spool holds is looked at together, all sessions of a rank as one. Memory is an index on
disk, and the durations of one rank's scopes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ..semconv import OVERHEAD_NS
from .breakdown import STEP, Breakdown, Phase
from .index import SpoolIndex, id_of
from .reader import SpoolReader
from .rows import number_of

# What is in the spool twice (a child that was forked had what its parent had) counts once; a step
# within a step is a phase of that one. SQLite makes a float of what exceeds 64 bits.
_STEPS = """
CREATE TABLE step (
    no INTEGER PRIMARY KEY, id BLOB UNIQUE, parent BLOB, rank INTEGER, idx TEXT, start_ns INTEGER,
    ns INTEGER
);
INSERT OR IGNORE INTO step
SELECT no, id, parent, rank, idx, start_ns, end_ns - start_ns FROM span
WHERE name = 'step' AND end_ns - start_ns IS NOT NULL AND id IS NOT NULL ORDER BY no;
DELETE FROM step WHERE parent IN (SELECT id FROM step);
CREATE TABLE phase (
    no INTEGER PRIMARY KEY, id BLOB UNIQUE, step INTEGER, name TEXT, ns INTEGER
);
INSERT OR IGNORE INTO phase
SELECT span.no, span.id, step.no, span.name, span.end_ns - span.start_ns
FROM span JOIN step ON span.parent = step.id
WHERE span.name IS NOT 'micro_step' AND span.end_ns - span.start_ns IS NOT NULL;
INSERT OR IGNORE INTO phase
SELECT span.no, span.id, step.no, span.name, span.end_ns - span.start_ns
FROM span JOIN span AS micro ON span.parent = micro.id AND micro.name = 'micro_step'
JOIN step ON micro.parent = step.id
WHERE span.end_ns - span.start_ns IS NOT NULL;
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
SELECT step.no, step.id, step.rank, step.idx, epoch.name, epoch.idx, step.start_ns, step.ns
FROM step LEFT JOIN span AS epoch ON epoch.no = (
    SELECT min(no) FROM span WHERE span.id = step.parent
)
ORDER BY step.ns DESC, step.no LIMIT ?
"""
_PHASES = "SELECT name, ns FROM phase WHERE step = ? ORDER BY no"
_MARKS = """
SELECT span.rank, mark.name, mark.value FROM mark LEFT JOIN span ON span.no = (
    SELECT min(no) FROM span WHERE span.id = mark.span
)
WHERE mark.name IS NOT ? ORDER BY mark.name, span.rank, mark.ts_ns, mark.no
"""
_EPOCH = "epoch"
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

    span_id: str
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
class RunReport:
    """What a spool says of its runs."""

    spans: int
    ranks: list[RankReport]
    slowest_steps: list[SlowStep]
    marks: list[MarkSeries] = field(default_factory=list)
    """The first 1,000 series, by name and rank."""

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object; times in ns."""
        return {
            "spans": self.spans,
            "ranks": [each.to_json() for each in self.ranks],
            "slowest_steps": [asdict(each) for each in self.slowest_steps],
            "marks": [asdict(each) for each in self.marks],
        }


def report_run(reader: SpoolReader, slowest: int = 10) -> RunReport:
    """Read the spool; the `slowest` steps of all ranks are listed, the slowest first.

    Raises InputError where the spool cannot be read, TargetError where the index has no room.
    """
    with SpoolIndex().load(reader) as index:
        index.script(_STEPS)
        return RunReport(
            index.one("SELECT count(*) FROM span"),
            [
                RankReport(rank, spans, first_ns, last_ns, _breakdown(index, rank))
                for rank, spans, first_ns, last_ns in index.rows(_RANKS)
            ],
            [_slow(index, row) for row in index.rows(_SLOWEST, slowest)],
            list(_series(index)),
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
            each = phases.setdefault(name or "?", Phase(name or "?"))
            each.durations.append(int(ns))
            rest.durations[-1] -= int(ns)
    return Breakdown(steps, list(phases.values()), rest)


def _slow(index: SpoolIndex, row: tuple[Any, ...]) -> SlowStep:
    number, key, rank, step, parent, epoch, start_ns, ns = row
    phases: dict[str, int] = defaultdict(int)
    for name, phase_ns in index.rows(_PHASES, number):
        phases[name or "?"] += int(phase_ns)
    epoch = epoch if parent == _EPOCH else None
    return SlowStep(id_of(key), rank, epoch, step, start_ns, int(ns), dict(phases))


def _series(index: SpoolIndex) -> Iterator[MarkSeries]:
    current: MarkSeries | None = None
    found = 0
    for rank, name, value in index.rows(_MARKS, OVERHEAD_NS):
        if current is None or (current.name, current.rank) != (name or "?", rank):
            if current is not None:
                yield current
            found += 1
            if found > _MAX_SERIES:
                return
            current = MarkSeries(name or "?", rank)
        current.add(value)
    if current is not None:
        yield current
