"""The OTLP target for batches that may not name their session."""

from __future__ import annotations

import os
from pathlib import Path

from ..placement.batch_outline import BatchOutline, SpanOutline
from ..placement.session_index import SessionIndex
from ..targets.otlp.config import OtlpConfig
from ..targets.otlp.target import OtlpTarget
from ..translator.codec import NoBatchError, encode, pushable
from ..translator.own.encode import Options
from ..translator.values import encodable
from .batch_target import SealedBatch
from .delivery_stats import ExportStats
from .errors import PushResult, RefusedError

MOST_PENDING = 50_000
"""The maximum number of scopes that batches wait for. Above it, batches no longer wait for the
older half.
"""
MOST_SESSIONS = 20_000
"""The maximum number of sessions whose records are counted into segments. Above it, the half that
was counted least recently is dropped.
"""
MOST_NODES = 500_000
"""The maximum number of recorded scopes to which later batches may refer. Above it, the older half
is dropped.
"""


class FollowIndex(SessionIndex):
    """The index of a growing spool. It stores which batches it has read and counted.

    Each batch is counted into segments only once, so that it gets the same trace whether it is sent
    now, later, or after a restart. Spans that arrived in OTLP have their own traces: they are not
    counted, and batches do not wait for their parents. The size of the index is bounded.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the index at `path`. Only one process may have it open."""
        super().__init__(path, durable=True)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS followed (name TEXT PRIMARY KEY, counted INTEGER)"
            " WITHOUT ROWID"
        )
        rows = self._db.execute("SELECT name, counted FROM followed").fetchall()
        self._counted = {
            name if isinstance(name, str) else os.fsdecode(name): bool(counted)
            for name, counted in rows
        }
        self._nodes: int = self._db.execute("SELECT COUNT(*) FROM node").fetchone()[0]
        self._forget_pending()

    def __contains__(self, name: str) -> bool:
        return name in self._counted

    def observe_once(self, name: str, batch: BatchOutline) -> None:
        """Add a batch that is not in the index yet."""
        if batch.is_foreign:
            self._find_pending(batch)
        else:
            self.observe(batch)
        self._counted[name] = False
        self._db.execute("INSERT OR IGNORE INTO followed VALUES (?, 0)", (_column(name),))

    def count_once(self, name: str, batch: BatchOutline) -> None:
        """Count a batch's records into segments, unless they have been counted already."""
        if not self._counted.get(name):
            if not batch.is_foreign:
                self.count(batch)
            self._counted[name] = True
            self._db.execute("REPLACE INTO followed VALUES (?, 1)", (_column(name),))

    def _find_pending(self, batch: BatchOutline) -> None:
        """Add only the scopes to which earlier batches refer."""
        by_id = {span.id: span for span in batch.spans}
        pending_ids = by_id.keys() & self._pending.keys()
        for some_id in pending_ids:
            topmost_span = self._add_chain(by_id[some_id], by_id)
            if topmost_span is not None and topmost_span.parent_id is not None:
                self._refer(topmost_span.parent_id, topmost_span)

    def _add_node(self, span: SpanOutline, top_start: str) -> None:
        super()._add_node(span, top_start)
        self._nodes += 1

    def commit(self) -> None:
        """Commit the changes, and drop the oldest entries above the limits."""
        self._forget_pending()
        self._forget_nodes()
        self._segments.keep_latest(MOST_SESSIONS)
        super().commit()

    def _forget_pending(self) -> None:
        if len(self._pending) > MOST_PENDING:
            oldest_ids = list(self._pending)[: len(self._pending) - MOST_PENDING // 2]
            for some_id in oldest_ids:
                del self._pending[some_id]
            self._unplaced.difference_update(oldest_ids)
            rows = [(some_id,) for some_id in oldest_ids]
            self._db.executemany("DELETE FROM referred WHERE id = ?", rows)
            self._db.executemany("DELETE FROM evidence WHERE id = ?", rows)

    def _forget_nodes(self) -> None:
        if self._nodes > MOST_NODES:
            self._db.execute(
                "DELETE FROM node WHERE id IN"
                " (SELECT id FROM node ORDER BY CAST(start AS INTEGER) LIMIT ?)",
                (self._nodes - MOST_NODES // 2,),
            )
            self._nodes = MOST_NODES // 2

    def forget(self, present: set[str]) -> None:
        """Drop the names of batches that are no longer in the spool."""
        for name in self._counted.keys() - present:
            del self._counted[name]
            self._db.execute("DELETE FROM followed WHERE name = ?", (_column(name),))


def _column(name: str) -> str | bytes:
    """Return a file name as a value that SQLite can store: as bytes if it is not valid UTF-8."""
    return name if encodable(name) else os.fsencode(name)


class IndexedTarget(OtlpTarget):
    """An OTLP target for batches of any origin; the index supplies sessions that batches lack."""

    def __init__(
        self, config: OtlpConfig, options: Options, index: SessionIndex, stats: ExportStats
    ) -> None:
        """Prepare the target, without opening a connection.

        Raises MissingExtraError if the `otlp` extra is not installed, and UsageError if a
        certificate or header is unusable.
        """
        super().__init__(config, options)
        self._index, self._stats = index, stats

    def _encoded(self, batch: SealedBatch) -> bytes:
        try:
            return pushable(encode(batch.name, batch.data, self._index, self._options).data).data
        except NoBatchError as error:
            raise RefusedError(f"{batch.name} is not a batch: {error}") from None

    def _accepted(self, result: PushResult, size: int) -> None:
        self._stats.accepted_spans += result.accepted_spans
        self._stats.messages += result.requests
        self._stats.written_bytes += size
