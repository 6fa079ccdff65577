"""Assign loose spans to the session of their process.

A loose span has no parent, and its batch does not name its session. A thread that was started
outside any scope records such spans. If the batch does not contain the session, the span belongs to
the stored session of the same workspace, process id and rank that was open when the span started.
If several such sessions were open (the same process id on several hosts), the session is unknown,
and the span keeps its own trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ....semconv import SESSION
from ...records.columns import TraceSpan, integer
from .database import Database, parts
from .rows import PreparedBatch

_COLUMNS = ("id", "workspaceId", "pid", "rank", "startNs", "endNs")
_SESSIONS, _LOOSE = "TraceSession", "TraceLoose"

_OPEN_SESSIONS = """
SELECT "id", "workspaceId", "pid", "rank", "startNs", "endNs" FROM "TraceSession"
WHERE {in_clause} AND "endNs" >= ? AND "startNs" <= ?
"""
_LOOSE_WITHIN = """
SELECT "id", "workspaceId", "pid", "rank", "startNs", "endNs" FROM "TraceLoose"
WHERE "pid" = ? AND "startNs" BETWEEN ? AND ? AND "rank" = ? AND "workspaceId" = ?
"""
_MOVE = """
UPDATE "TraceSpan" SET
  "traceId" = ?, "runId" = CASE WHEN "runId" = "traceId" THEN ? ELSE "runId" END
WHERE "traceId" = ?
"""
_FOUND = 'DELETE FROM "TraceLoose" WHERE "pid" = ? AND "startNs" = ? AND "id" = ?'
_FORGET = """
DELETE FROM "{table}" WHERE NOT EXISTS
  (SELECT 1 FROM "TraceSpan" s WHERE s."id" = "{table}"."id")
"""


class _Process(NamedTuple):
    """A session or a loose span, with the identity of its process."""

    id: str
    workspace_id: str
    pid: int
    rank: int
    start_ns: int
    end_ns: int


def settle_processes(database: Database, prepared: Sequence[PreparedBatch]) -> None:
    """Record the sessions and loose spans of new batches, and assign loose spans to sessions.

    Only new rows are looked up, so the cost does not grow with the stored data. Call it in a
    transaction, after `serialize`.
    """
    sessions = [row for each in prepared for row in _rows(each, of_sessions=True)]
    loose = [row for each in prepared for row in _rows(each, of_sessions=False)]
    if sessions:
        database.bulk_insert(_SESSIONS, _COLUMNS, sessions)
    known = {row for session in sessions for row in _loose_within(database, session)}
    session_by_row = _sessions_of(database, [*loose, *known])
    for row, session in session_by_row.items():
        database.run(_MOVE, session, session, row.id)
        if row in known:
            database.run(_FOUND, row.pid, row.start_ns, row.id)
    left = [row for row in loose if row not in session_by_row]
    if left:
        database.bulk_insert(_LOOSE, _COLUMNS, left)


def _loose_within(database: Database, session: _Process) -> list[_Process]:
    rows = database.rows(
        _LOOSE_WITHIN,
        session.pid,
        session.start_ns,
        session.end_ns,
        session.rank,
        session.workspace_id,
    )
    return [_Process(*row) for row in rows]


def _sessions_of(database: Database, loose: Sequence[_Process]) -> dict[_Process, str]:
    """Map loose spans to their sessions; omit a span unless exactly one stored session matches."""
    if not loose:
        return {}
    statement = _OPEN_SESSIONS.format(in_clause=database.in_clause('"pid"'))
    earliest, latest = min(row.start_ns for row in loose), max(row.start_ns for row in loose)
    of_process: dict[tuple[str, int, int], list[_Process]] = {}
    for pids in parts(sorted({row.pid for row in loose})):
        for row in database.rows(statement, database.array_param(pids), earliest, latest):
            session = _Process(*row)
            of_process.setdefault(session[1:4], []).append(session)
    session_by_span: dict[_Process, str] = {}
    for span in loose:
        sessions = of_process.get(span[1:4], ())
        ids = {each.id for each in sessions if each.start_ns <= span.start_ns <= each.end_ns}
        if len(ids) == 1:
            session_by_span[span] = ids.pop()
    return session_by_span


def forget_processes(database: Database) -> None:
    """Remove the entries of sessions and loose spans that are no longer stored."""
    for table in (_SESSIONS, _LOOSE):
        database.run(_FORGET.format(table=table))


def _rows(prepared: PreparedBatch, *, of_sessions: bool) -> Iterator[_Process]:
    if prepared.records is None or not prepared.is_one_process:
        return
    for span, record in zip(prepared.records.spans, prepared.spans, strict=True):
        if span.parent_span_id is not None or not isinstance(record, dict):
            continue
        pid = integer(record.get("pid"), 64)
        if pid is not None and _is_wanted(prepared, span, of_sessions):
            yield _Process(span.id, span.workspace_id, pid, span.rank, span.start_ns, span.end_ns)


def _is_wanted(prepared: PreparedBatch, span: TraceSpan, of_sessions: bool) -> bool:
    if span.name == SESSION:
        return of_sessions
    return not of_sessions and prepared.root_ids.get(span.id) == span.id
