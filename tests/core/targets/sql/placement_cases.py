"""The placement rule as a table: the session and the segment of each record, as batches arrive.

Every store of the package runs it (`test_placement`): the plan of one batch, in memory; the index
of a spool, in memory and reopened from its file; the SQL store, on SQLite and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cirron_otel.semconv import SESSION as SESSION_NAME
from tests.kit.spools.made import (
    made,
    mark,
    span,
    span_id,
)

SESSION, EPOCH, STEP, OTHER = 1, 2, 3, 9
"""The numbers of the records that most cases have."""

INDEX, SQL = "index", "sql"
"""Kinds of stores."""


class Case(NamedTuple):
    """Batches in the order in which they arrive, and the place of each record."""

    name: str
    batches: list[dict[str, Any]]
    sessions: Mapping[int, int]
    """The session of each span, both as the numbers of their ids."""
    segments: Mapping[int, int] = {}
    """The segment of each span that is not in the first one. The SQL store has no segments."""
    only: Mapping[str, Mapping[int, int]] = {}
    """Sessions that differ in one kind of store, with the reason in `why`."""
    why: str = ""
    marks: Mapping[int, int] = {}
    """The session of each mark on a scope that is in no batch."""
    limit: int | None = None
    """Records in one segment; None for the limit of the package."""
    needs_only_parents: bool = True
    """Whether parents alone determine the sessions, without processes, times and other batches."""


def session(number: int = SESSION, **changes: Any) -> dict[str, Any]:
    return span(number, None, name=SESSION_NAME, start_ns=0, end_ns=2**62) | changes


CASES = [
    Case(
        "all in one batch",
        [made(1, spans=[span(STEP, EPOCH), span(EPOCH, SESSION, name="epoch"), session()])],
        {STEP: SESSION, EPOCH: SESSION, SESSION: SESSION},
    ),
    Case(
        "each parent after its child",
        [
            made(1, spans=[span(STEP, EPOCH)]),
            made(2, spans=[span(EPOCH, SESSION, name="epoch")]),
            made(3, spans=[session()]),
        ],
        {STEP: SESSION, EPOCH: SESSION, SESSION: SESSION},
    ),
    Case(
        "each parent ahead of its child",
        [
            made(1, spans=[session()]),
            made(2, spans=[span(EPOCH, SESSION, name="epoch")]),
            made(3, spans=[span(STEP, EPOCH)]),
        ],
        {STEP: SESSION, EPOCH: SESSION, SESSION: SESSION},
    ),
    Case(
        "a session that is never recorded: the parent of an epoch is one",
        [made(1, spans=[span(STEP, EPOCH)]), made(2, spans=[span(EPOCH, SESSION, name="epoch")])],
        {STEP: SESSION, EPOCH: SESSION},
    ),
    Case(
        "an unrecorded parent keeps its descendants together",
        [made(1, spans=[span(4, OTHER)]), made(2, spans=[span(5, OTHER), span(6, 5)])],
        {4: OTHER, 5: OTHER, 6: OTHER},
    ),
    Case(
        "an unrecorded parent in a process whose session is recorded",
        [made(1, spans=[span(4, OTHER)]), made(2, spans=[session()])],
        {4: SESSION, SESSION: SESSION},
        only={SQL: {4: OTHER}},
        why="the SQL store keeps the id of the topmost known ancestor: the parent may still arrive",
        needs_only_parents=False,
    ),
    Case(
        "a span without a parent is in the session of its process",
        [
            made(1, spans=[session(pid=7, start_ns=0, end_ns=900)]),
            made(2, spans=[span(4, pid=7, start_ns=500)]),
            made(3, spans=[span(5, 4, pid=7, start_ns=600)]),
        ],
        {4: SESSION, 5: SESSION, SESSION: SESSION},
        needs_only_parents=False,
    ),
    Case(
        "a span without a parent, ahead of the session of its process",
        [
            made(1, spans=[span(4, pid=7, start_ns=500)]),
            made(2, spans=[session(pid=7, start_ns=0, end_ns=900)]),
        ],
        {4: SESSION, SESSION: SESSION},
        needs_only_parents=False,
    ),
    Case(
        "a span without a parent, in another process or at another time",
        [
            made(1, spans=[session(pid=7, start_ns=100, end_ns=900)]),
            made(2, spans=[span(4, pid=8, start_ns=500)]),
            made(3, spans=[span(5, pid=7, start_ns=901)]),
        ],
        {4: 4, 5: 5, SESSION: SESSION},
        needs_only_parents=False,
    ),
    Case(
        "a span without a parent, of a process id with two open sessions",
        [
            made(1, spans=[session(pid=7, start_ns=100, end_ns=900)]),
            made(2, spans=[session(OTHER, pid=7, start_ns=200, end_ns=900)]),
            made(3, spans=[span(4, pid=7, start_ns=500)]),
        ],
        {4: 4, SESSION: SESSION, OTHER: OTHER},
        only={INDEX: {4: OTHER}},
        why="a spool is of one host, where the later session wins; a store receives from several",
        needs_only_parents=False,
    ),
    Case(
        "a span without a parent, next to its session in the batch",
        [made(1, spans=[session(), span(4), span(5, 4)])],
        {4: SESSION, 5: SESSION, SESSION: SESSION},
    ),
    Case(
        "two sessions in one batch",
        [made(1, spans=[session(pid=7), span(4, SESSION, pid=7), session(OTHER), span(5, OTHER)])],
        {SESSION: SESSION, 4: SESSION, OTHER: OTHER, 5: OTHER},
    ),
    Case(
        "a batch that names its session",
        [
            made(1, spans=[span(STEP, EPOCH), span(5)], otel={"session": span_id(SESSION)}),
            made(2, spans=[span(EPOCH, SESSION)], otel={"session": span_id(SESSION)}),
        ],
        {STEP: SESSION, 5: SESSION, EPOCH: SESSION},
    ),
    Case(
        "marks on scopes of other batches",
        [
            made(1, marks=[mark(1, EPOCH)], spans=[span(STEP, EPOCH)]),
            made(2, spans=[span(EPOCH, SESSION, name="epoch")]),
        ],
        {STEP: SESSION, EPOCH: SESSION},
        marks={EPOCH: SESSION},
    ),
    Case(
        "a circle of parents",
        [made(n, spans=[span(own, parent)]) for n, own, parent in ((1, 4, 5), (2, 5, 4))],
        {4: 4, 5: 4},
        needs_only_parents=False,
    ),
    Case(
        "segments: a child or grandchild of the session opens one when the last is full",
        [
            made(1, spans=[span(11, 10), span(12, 10)]),
            made(2, spans=[span(10, SESSION, name="epoch")]),
            made(3, spans=[span(21, 20), span(22, 20)]),
            made(4, spans=[span(20, SESSION, name="epoch"), session()]),
        ],
        dict.fromkeys((10, 11, 12, 20, 21, 22, SESSION), SESSION),
        segments={12: 1, 20: 1, 21: 2, 22: 3},
        limit=1,
    ),
]
