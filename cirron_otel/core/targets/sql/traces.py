"""Trace ids across batches: the id of each span's root scope, although parents arrive late.

A scope is written when it ends, so a span's parent, and the session above it, usually arrive in a
later batch, or never. Until then the topmost known scope, stored or not, is the root of a span. The
table TraceUnresolved contains the ids of roots that are not stored. When one of them arrives, its
spans get the root of that scope.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .database import Database, parts
from .keys import resolve_root
from .ownership import BlobUri
from .processes import settle_processes
from .rows import SNAPSHOT, PreparedBatch, replace_blob_uri


class Placing:
    """Finds the trace ids of batches that are about to be stored, in one transaction."""

    def __init__(self, database: Database, prepared: Sequence[PreparedBatch]) -> None:
        """Set the trace id, and the run id that follows from it, of all spans of `prepared`."""
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
        """After the rows are stored: update the spans that waited for them; record missing roots.

        Writers pass one at a time, and each holds the lock until its transaction has ended. So a
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
        """Set the URIs of a batch's snapshots; `extra` keeps the recorded ones."""
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
        """Return the roots that are neither in these batches nor among the looked-up scopes."""
        ends = {
            resolve_root(span.trace_id, self._root_ids)
            for each in prepared
            if each.records is not None
            for span in each.records.spans
        }
        return {some_id for some_id in ends if some_id not in self._root_ids}

    def _look_up(self, ids: Iterable[str]) -> None:
        """Read the roots of stored scopes; if several have one id, the first counts."""
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
        """Return those of the ids that are in TraceUnresolved."""
        database = self._database
        condition = database.in_clause('"id"')
        statement = f'SELECT "id" FROM "TraceUnresolved" WHERE {condition}'  # noqa: S608
        return {
            row[0]
            for some in parts(ids)
            for row in database.rows(statement, database.array_param(some))
        }
