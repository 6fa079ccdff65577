"""Determine trace ids across batches: the trace id of a span is the id of its root scope.

A scope is written when it ends, so a span's parent, and the session above it, usually arrive in a
later batch, or never. Until then, the topmost known scope, whether it is stored or not, is the root
of the span. The table TraceUnresolved contains the ids of roots that are not stored. When such a
root arrives, its spans get the root of the new scope.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .database import Database, parts
from .keys import resolve_root
from .ownership import BlobUri
from .processes import settle_processes
from .rows import SNAPSHOT, PreparedBatch, replace_blob_uri


class Placing:
    """Determines the trace ids of the batches that one transaction is about to store."""

    def __init__(self, database: Database, prepared: Sequence[PreparedBatch]) -> None:
        """Set the trace id of all spans of `prepared`, and the run ids that depend on it."""
        self._database = database
        self._new_ids: list[str] = []
        self._root_ids: dict[str, str] = {}
        for each in prepared:
            for some_id, root_id in each.root_ids.items():
                self._root_ids.setdefault(some_id, root_id)
        for each in prepared:
            if each.records is not None:
                self._new_ids += [span.id for span in each.records.spans]
        self._look_up(self._open(prepared))
        for each in prepared:
            self._place(each)

    def settle(self, prepared: Sequence[PreparedBatch]) -> None:
        """After storing the rows, update the spans that waited for them, and record missing roots.

        Only one writer at a time can do this; it holds the lock until its transaction ends. So a
        child and a parent that are stored concurrently are always connected.
        """
        database = self._database
        database.serialize()
        is_open = self._open(prepared)
        self._look_up(is_open)
        arrived = self._noted(self._new_ids)
        for some_id in sorted({*is_open, *arrived}):
            trace_id = resolve_root(some_id, self._root_ids)
            if trace_id != some_id:
                database.run(
                    'UPDATE "TraceSpan" SET "traceId" = ?, "runId" ='
                    ' CASE WHEN "runId" = "traceId" THEN ? ELSE "runId" END WHERE "traceId" = ?',
                    trace_id,
                    trace_id,
                    some_id,
                )
        condition = database.in_clause('"id"')
        statement = f'DELETE FROM "TraceUnresolved" WHERE {condition}'  # noqa: S608
        for ids in parts(sorted(arrived)):
            database.run(statement, database.array_param(ids))
        waiting = self._open(prepared)
        for ids in parts(sorted(waiting - self._noted(waiting))):
            database.bulk_insert("TraceUnresolved", ["id"], [(some_id,) for some_id in ids])
        settle_processes(database, prepared)

    def set_blob_uris(self, prepared: PreparedBatch, uri_of: BlobUri) -> None:
        """Set the URIs of a batch's snapshots; `extra` keeps the recorded URIs."""
        for row, record in zip(prepared.records_of(SNAPSHOT), prepared.snapshots, strict=True):
            if row.blob_uri is not None:
                run_id = prepared.owner.run_id or resolve_root(row.span_id, self._root_ids)
                replace_blob_uri(row, record, uri_of(record, prepared.owner.workspace_id, run_id))

    def _place(self, prepared: PreparedBatch) -> None:
        records = prepared.records
        if records is None:
            return
        for span in records.spans:
            span.trace_id = resolve_root(span.trace_id, self._root_ids)
            span.run_id = span.run_id or span.trace_id

    def _open(self, prepared: Sequence[PreparedBatch]) -> set[str]:
        """Return the roots that are neither in these batches nor among the scopes read so far."""
        ends = {
            resolve_root(span.trace_id, self._root_ids)
            for each in prepared
            if each.records is not None
            for span in each.records.spans
        }
        return {some_id for some_id in ends if some_id not in self._root_ids}

    def _look_up(self, ids: Iterable[str]) -> None:
        """Read the roots of stored scopes; if several have the same id, the first is used."""
        database = self._database
        condition = database.in_clause('"id"')
        for some in parts(sorted(ids)):
            rows = database.rows(
                f'SELECT "id", "traceId" FROM "TraceSpan" WHERE {condition}'  # noqa: S608
                ' ORDER BY "batchKey" DESC, "ordinal" DESC',
                database.array_param(some),
            )
            self._root_ids |= rows

    def _noted(self, ids: Collection[str]) -> set[str]:
        """Return the ids that are in TraceUnresolved."""
        database = self._database
        condition = database.in_clause('"id"')
        statement = f'SELECT "id" FROM "TraceUnresolved" WHERE {condition}'  # noqa: S608
        return {
            row[0]
            for some in parts(ids)
            for row in database.rows(statement, database.array_param(some))
        }
