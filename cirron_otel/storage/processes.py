"""Spans without a parent beside the session, of programs whose batches do not name it.

A thread that was started without a scope around it records such spans. They belong to the session
of their process: where nothing in their batch tells which that is, to the one stored session of
the same workspace, process id and rank that was open when the span began. Where several were (the
same process id on several hosts), nobody knows, and the span stays a trace of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..semconv import SESSION
from ..translator.columns import integer
from ..translator.platform import TraceSpan
from .database import Database, parts
from .rows import Made

_COLUMNS = ("id", "workspaceId", "pid", "rank", "startNs", "endNs")
_SESSIONS, _LOOSE = "TraceSession", "TraceLoose"

_FOUND = """
SELECT l."id" AS "loose", MIN(s."id") AS "session"
FROM "TraceLoose" l JOIN "TraceSession" s
  ON s."pid" = l."pid" AND s."rank" = l."rank" AND s."workspaceId" = l."workspaceId"
  AND s."startNs" <= l."startNs" AND s."endNs" >= l."startNs"
WHERE {among} GROUP BY l."id" HAVING COUNT(DISTINCT s."id") = 1
"""
_MOVE = """
UPDATE "TraceSpan" SET
  "traceId" = f."session",
  "runId" = CASE WHEN "runId" = "traceId" THEN f."session" ELSE "runId" END
FROM ({found}) f WHERE "TraceSpan"."traceId" = f."loose"
"""
_CLEAR = """
DELETE FROM "TraceLoose" WHERE {among} AND EXISTS
  (SELECT 1 FROM "TraceSpan" s WHERE s."id" = "TraceLoose"."id" AND s."traceId" <> s."id")
"""
_FORGET = """
DELETE FROM "{table}" WHERE NOT EXISTS
  (SELECT 1 FROM "TraceSpan" s WHERE s."id" = "{table}"."id")
"""


def settle_processes(database: Database, made: Iterable[Made]) -> None:
    """Note the sessions and the loose spans of stored batches; bring together what can be.

    To be called in a transaction, behind `serialize`.
    """
    pids: set[int] = set()
    for table, name in ((_SESSIONS, True), (_LOOSE, False)):
        rows = [row for each in made for row in _rows(each, of_sessions=name)]
        pids.update(row[2] for row in rows)
        if rows:
            database.fill(table, _COLUMNS, rows)
    for some in parts(pids):
        among = database.among
        many = database.many(some)
        found = _FOUND.format(among=among('l."pid"'))
        database.run(_MOVE.format(found=found), many)
        database.run(_CLEAR.format(among=among('"pid"')), many)


def forget_processes(database: Database) -> None:
    """Forget the sessions and the loose spans that are stored no more."""
    for table in (_SESSIONS, _LOOSE):
        database.run(_FORGET.format(table=table))


def _rows(made: Made, *, of_sessions: bool) -> Iterator[tuple[str, str, int, int, int, int]]:
    if made.records is None or not made.is_one_process:
        return
    for span, record in zip(made.records.spans, made.spans, strict=True):
        if span.parent_span_id is not None or not isinstance(record, dict):
            continue
        pid = integer(record.get("pid"), 64)
        if pid is not None and _is_wanted(made, span, of_sessions):
            yield span.id, span.workspace_id, pid, span.rank, span.start_ns, span.end_ns


def _is_wanted(made: Made, span: TraceSpan, of_sessions: bool) -> bool:
    if span.name == SESSION:
        return of_sessions
    return not of_sessions and made.tops.get(span.id) == span.id
