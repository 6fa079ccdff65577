"""The steps of an index that have digests, in an order in which two runs can be merged.

All steps are in the index on disk; memory holds one step at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final, NamedTuple

from ....ulp import FORMATS, bits_of_double
from ...records.trace_marks import trace_numbers
from ..epochs import create_epoch_table
from ..index import SpoolIndex
from .numbers import ExactNumber

DIGESTS, TRACE = 0, 1
"""The sources of steps: marks with digests, and records of a DGRR trace."""

# `turn` counts the steps of a session that have the same epoch and index, as in a second training
# of the same process. `attempt` counts the sessions: a restarted job repeats steps. The first step
# of a session has digests; steps before it are batches that a resumed training has skipped.
_TABLE: Final = """
CREATE TABLE digest_step (
    no INTEGER PRIMARY KEY, source INTEGER, rank INTEGER, epoch TEXT, idx TEXT, turn INTEGER,
    attempt INTEGER, attempts INTEGER, step INTEGER, is_cut INTEGER, start_ns INTEGER, span BLOB,
    mark INTEGER
);
"""
_HAS_DIGESTS: Final = "SELECT 1 FROM digest LIMIT 1"
_HAS_TRACE: Final = "SELECT 1 FROM trace_step LIMIT 1"
_PARENTS: Final = """
SELECT parent FROM span WHERE id IN (SELECT span FROM mark CROSS JOIN digest USING (file, position))
UNION SELECT parent FROM step
"""
_STEPS: Final = """
INSERT INTO digest_step
WITH digested (id) AS (SELECT DISTINCT span FROM mark CROSS JOIN digest USING (file, position)),
scope AS (
    SELECT span.no, span.id, span.rank, digest_epoch.epoch, span.idx, span.start_ns,
        member.session, span.error IS NOT NULL AS has_failed
    FROM span JOIN member USING (no) LEFT JOIN digest_epoch ON digest_epoch.parent = span.parent
    WHERE span.id IN (SELECT id FROM digested) OR span.no IN (SELECT no FROM step)
),
begun AS (
    SELECT session, rank, min(start_ns) AS start_ns FROM scope WHERE id IN (SELECT id FROM digested)
    GROUP BY 1, 2
),
turned AS (
    SELECT scope.*,
        row_number() OVER (PARTITION BY coalesce(scope.rank, 0) ORDER BY scope.start_ns, no) - 1
            AS step,
        has_failed AND lead(no) OVER (
            PARTITION BY coalesce(scope.rank, 0), scope.session ORDER BY scope.start_ns, no
        ) IS NULL AS is_cut,
        row_number() OVER (
            PARTITION BY coalesce(scope.rank, 0), scope.session, epoch, idx
            ORDER BY scope.start_ns, no
        ) AS turn
    FROM scope LEFT JOIN begun ON begun.session = scope.session AND begun.rank IS scope.rank
    WHERE begun.start_ns IS NULL OR scope.start_ns >= begun.start_ns
),
counted AS (
    SELECT *,
        row_number() OVER (same_number ORDER BY start_ns, no) AS attempt,
        count(*) OVER same_number AS attempts
    FROM turned WINDOW same_number AS (PARTITION BY coalesce(rank, 0), epoch, idx, turn)
)
SELECT NULL, 0, rank, epoch, idx, turn, attempt, attempts, step, is_cut, start_ns, id, NULL
FROM counted WHERE id IN (SELECT id FROM digested)
ORDER BY coalesce(rank, 0), length(epoch), epoch, length(idx), idx, turn, attempt
"""
_TRACE_STEPS: Final = """
INSERT INTO digest_step
SELECT NULL, 1, span.rank, NULL, trace_step.step_id,
    row_number() OVER (
        PARTITION BY coalesce(span.rank, 0), trace_step.step_id ORDER BY mark.no
    ) AS turn,
    1 AS attempt, 1, NULL, 0, NULL, mark.span, mark.no
FROM mark JOIN trace_step USING (file, position) LEFT JOIN span ON span.id = mark.span
WHERE mark.name = 'dgrr.step'
ORDER BY coalesce(rank, 0), length(step_id), step_id, turn
"""
_DIGESTS: Final = """
SELECT digest_step.no, source, rank, epoch, idx, turn, attempt, attempts, step,
    quantity, mark.value, mark.file, mark.position, mark.ts_ns, mark.no, dtype, bits, is_failed,
    is_cut
FROM digest_step CROSS JOIN mark ON mark.span = digest_step.span
CROSS JOIN digest USING (file, position)
WHERE source = 0 AND digest_step.no BETWEEN ? AND ?
ORDER BY digest_step.no
"""
_TRACE: Final = """
SELECT digest_step.no, source, rank, epoch, idx, turn, attempt, attempts, step,
    mark.name, mark.value, mark.file, mark.position, mark.ts_ns, mark.no, trace_step.numbers
FROM digest_step CROSS JOIN mark ON mark.no = digest_step.mark
CROSS JOIN trace_step USING (file, position)
WHERE source = 1 AND digest_step.no BETWEEN ? AND ? ORDER BY digest_step.no
"""
_FIND: Final = """
SELECT no FROM digest_step
WHERE source = 0 AND coalesce(rank, 0) = ? AND epoch IS ? AND idx IS ? AND turn = ?
ORDER BY attempt DESC LIMIT 1
"""
_COUNTS: Final = """
SELECT rank, count(*) FROM digest_step WHERE source = 0 AND attempt = attempts GROUP BY rank
"""
_LAST: Final = 2**63 - 1


class Observation(NamedTuple):
    """A quantity of a step."""

    quantity: str
    value: str | None
    """The digest; None in a trace."""
    file: int
    """The number of the batch in the index."""
    position: int
    """The position of the mark in its batch."""
    numbers: tuple[ExactNumber, ...] = ()
    """The numbers that are the quantity; empty if it is known by its digest only."""
    is_failed: bool = False
    """Whether tensors are missing from the digest, so that equal ones prove nothing."""


class StepKey(NamedTuple):
    """The numbers by which a step is found in another run."""

    rank: int
    """0 for a process without a rank."""
    epoch: str | None
    number: str | None
    turn: int


class ObservedStep(NamedTuple):
    """A step with the quantities that were observed in it."""

    source: int
    rank: int | None
    epoch: str | None
    number: str | None
    """The number in the epoch; the step id in a trace."""
    turn: int
    """The number of the step among those with the same epoch and index, from 1."""
    attempt: int
    attempts: int
    """The number of sessions that have the step: more than one after a restart."""
    step: int
    """The number among the steps of the rank, from 0; the step id in a trace."""
    observations: list[Observation]
    """In the order in which they were observed."""
    is_cut: bool = False
    """Whether the step ended with an error, and its session has no later one."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The key that the same step has in another run; keys are in order."""
        return (
            self.source, self.rank or 0, *sortable(self.epoch), *sortable(self.number), self.turn,
        )  # fmt: skip


def sortable(number: str | None) -> tuple[int, str]:
    """Return a key that puts numbers, as text, in order."""
    return (-1, "") if number is None else (len(number), number)


def has_digests(index: SpoolIndex) -> bool:
    """Return whether an index contains a mark with a digest."""
    return index.one(_HAS_DIGESTS) is not None


def create_digest_tables(index: SpoolIndex) -> None:
    """Create and fill the table of steps with digests, at most once per index.

    The index must be that of an `IndexedRecording`, which adds the tables of sessions and units.
    """
    index.script(_TABLE)
    if has_digests(index):
        create_epoch_table(index, "digest_epoch", _PARENTS)
        index.script(_STEPS)
    if index.one(_HAS_TRACE) is not None:
        index.script(_TRACE_STEPS)


def observed_steps(index: SpoolIndex) -> Iterator[ObservedStep]:
    """Yield the steps in order of their keys. `create_digest_tables` must have been called."""
    return _steps(index, 0, _LAST)


def find_step(index: SpoolIndex, key: StepKey) -> ObservedStep | None:
    """Return the last attempt of a step; None if the run does not have it, or not its digests.

    `number_steps` must have been called.
    """
    number = index.one(_FIND, *key)
    return None if number is None else next(_steps(index, number, number), None)


def step_counts(index: SpoolIndex) -> dict[int | None, int]:
    """Return the number of steps with digests of each rank, without repeated attempts."""
    return dict(index.rows(_COUNTS))


def number_steps(index: SpoolIndex) -> None:
    """Make the steps searchable by their numbers."""
    index.script("CREATE INDEX digest_step_number ON digest_step (idx, epoch, turn)")


def _steps(index: SpoolIndex, first: int, last: int) -> Iterator[ObservedStep]:
    for query in (_DIGESTS, _TRACE):
        for _, group in groupby(index.rows(query, first, last), key=lambda row: row[0]):
            rows = sorted(group, key=lambda row: (row[13] or 0, row[14]))
            source, rank, epoch, position, turn, attempt, attempts, step = rows[0][1:9]
            is_cut = False
            if source == TRACE:
                step, observations = int(position), _of_trace(rows[0])
            else:
                observations, is_cut = [_of_mark(row) for row in rows], bool(rows[0][18])
            yield ObservedStep(
                source, rank, epoch, position, turn, attempt, attempts, step, observations, is_cut
            )


def _of_mark(row: tuple[Any, ...]) -> Observation:
    quantity, value, file, position = row[9:13]
    dtype, bits, is_failed = row[15:18]
    numbers = numbers_of(dtype, None if bits is None else int(bits, 16))
    return Observation(quantity, value, file, position, numbers, bool(is_failed))


def numbers_of(dtype: str | None, bits: int | None) -> tuple[ExactNumber, ...]:
    """Return the number that is a loss; none if its bits are not recorded."""
    form = None if dtype is None else FORMATS.get(dtype)
    is_valid = bits is not None and bits >= 0 and (form is None or bits < 1 << form.bits)
    return (ExactNumber(None, dtype, bits),) if dtype and bits is not None and is_valid else ()


def _of_trace(row: tuple[Any, ...]) -> list[Observation]:
    """Return the quantities of a step of a trace, in causal order."""
    loss, file, position = row[10:13]
    numbers = [(None, float(loss or "nan")), *zip("wbwb", trace_numbers(row[15]), strict=True)]
    exact = [ExactNumber(tensor, "float64", bits_of_double(number)) for tensor, number in numbers]
    return [
        Observation(quantity, None, file, position, tuple(exact[start:end]))
        for quantity, start, end in (("loss", 0, 1), ("grads", 1, 3), ("weights", 3, 5))
    ]
