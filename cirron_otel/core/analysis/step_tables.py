"""Tables of an index for its steps and their phases, each phase with its own time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .breakdown import ends_closure, holds_phases, is_phase
from .index import SpoolIndex

# A step inside another step, at any depth, belongs to the outer one.
_STEPS = """
CREATE TABLE step (
    no INTEGER PRIMARY KEY, id BLOB UNIQUE, parent BLOB, rank INTEGER, idx TEXT, start_ns INTEGER,
    ns INTEGER
);
INSERT INTO step
SELECT no, id, parent, rank, idx, start_ns, max(end_ns - start_ns, 0) FROM span
WHERE name = 'step' AND end_ns - start_ns IS NOT NULL ORDER BY no;
DELETE FROM step WHERE parent IS NOT id AND parent IN (
    WITH RECURSIVE above (parent, id) AS (
        SELECT DISTINCT parent, parent FROM step WHERE parent IS NOT NULL
        UNION
        SELECT above.parent, span.parent FROM above JOIN span ON span.id = above.id
        WHERE span.parent IS NOT NULL AND NOT EXISTS (SELECT 1 FROM step WHERE step.id = above.id)
    )
    SELECT above.parent FROM above JOIN step ON step.id = above.id
);
CREATE TABLE part (
    no INTEGER PRIMARY KEY, id BLOB, step INTEGER, name TEXT, start_ns INTEGER, ns INTEGER,
    gpu_ns INTEGER, is_phase INTEGER, phase INTEGER
);
INSERT INTO part
WITH RECURSIVE part (no, id, step, name, start_ns, ns, gpu_ns, is_phase, phase) AS (
    SELECT span.no, span.id, step.no, span.name, span.start_ns,
        max(span.end_ns - span.start_ns, 0), max(span.gpu_ns, 0),
        span.name IS NOT 'micro_step', NULL
    FROM step JOIN span ON span.parent = step.id AND span.no <> step.no
    UNION ALL
    SELECT span.no, span.id, part.step, span.name, span.start_ns,
        max(span.end_ns - span.start_ns, 0), max(span.gpu_ns, 0),
        part.name IS 'micro_step' OR is_phase(span.name),
        CASE WHEN part.is_phase THEN part.no ELSE part.phase END
    FROM part CROSS JOIN span ON span.parent = part.id
    WHERE part.name IS 'micro_step' AND NOT part.is_phase OR holds_phases(part.name)
)
SELECT * FROM part;
CREATE TABLE phase (
    no INTEGER PRIMARY KEY, step INTEGER, name TEXT, ns INTEGER, gpu_ns INTEGER
);
INSERT INTO phase
WITH nested (around, taken, gpu_taken, has_closure, ended, gaps) AS (
    SELECT phase, sum(ns), sum(gpu_ns), max(name IS 'backward'), max(start_ns + ns),
        sum(CASE WHEN ends_closure(name) AND next IS NOT NULL AND NOT ends_closure(next)
            THEN max(next_ns - start_ns - ns, 0) ELSE 0 END)
    FROM (
        SELECT phase, name, start_ns, ns, gpu_ns, lead(name) OVER following AS next,
            lead(start_ns) OVER following AS next_ns
        FROM part WHERE is_phase AND phase IS NOT NULL
        WINDOW following AS (PARTITION BY phase ORDER BY start_ns, no)
    ) GROUP BY phase
)
SELECT no, step, coalesce(nullif(name, ''), '?'),
    CASE WHEN name IS 'optimizer_step' AND has_closure AND start_ns IS NOT NULL
    THEN gaps + max(start_ns + ns - max(start_ns, ended), 0)
    ELSE max(ns - coalesce(taken, 0), 0) END,
    max(gpu_ns - coalesce(gpu_taken, 0), 0)
FROM part LEFT JOIN nested ON nested.around = part.no
WHERE is_phase AND ns IS NOT NULL ORDER BY no;
DROP TABLE part;
CREATE INDEX step_rank ON step (rank);
CREATE INDEX phase_step ON phase (step);
"""


def create_step_tables(index: SpoolIndex) -> None:
    """Create and fill the tables `step` and `phase` of an index from `run_index`.

    The time of a phase, on the host and on the device, is without the phases inside it. A phase
    without a measured device time has the `gpu_ns` NULL.
    """
    for function in (is_phase, holds_phases, ends_closure):
        index.function(function)
    index.script(_STEPS)


_BY_STEP = """
SELECT step.no, step.ns, phase.name, phase.ns, phase.gpu_ns
FROM step LEFT JOIN phase ON phase.step = step.no
{where} ORDER BY step.start_ns, step.no, phase.no
"""


class TimedPhase(NamedTuple):
    """One phase of a step, without the phases inside it."""

    name: str
    ns: int
    gpu_ns: int | None
    """The device time; None if it was not measured."""


@dataclass(slots=True)
class StepTimes:
    """The time of a step, broken down by phase."""

    number: int
    """The key of the step in the index."""
    ns: int
    phases: list[TimedPhase] = field(default_factory=list)
    """In the order of the index; a phase that occurs twice has two entries."""

    @property
    def unattributed_ns(self) -> int:
        """The time that no phase covers; negative if phases overlap."""
        return self.ns - sum(phase.ns for phase in self.phases)

    def totals(self) -> dict[str, int]:
        """Return the time of each phase, ns."""
        totals: dict[str, int] = {}
        for phase in self.phases:
            totals[phase.name] = totals.get(phase.name, 0) + phase.ns
        return totals


def step_times(index: SpoolIndex) -> Iterator[StepTimes]:
    """Yield the steps of all ranks in order of start, after `create_step_tables`."""
    return _step_times(index.rows(_BY_STEP.format(where="")))


def _step_times(rows: Iterator[tuple[Any, ...]]) -> Iterator[StepTimes]:
    step: StepTimes | None = None
    for number, step_ns, name, ns, gpu_ns in rows:
        if step is None or number != step.number:
            if step is not None:
                yield step
            step = StepTimes(number, step_ns)
        if ns is not None:
            step.phases.append(TimedPhase(name, ns, gpu_ns))
    if step is not None:
        yield step
