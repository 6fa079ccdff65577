"""Sending the batches of a spool as OTLP when they may not name their session themselves."""

from __future__ import annotations

from pathlib import Path

from ..exporter.batch_target import Receipt, RefusedError, SealedBatch
from ..exporter.config import OtlpConfig
from ..exporter.otlp_target import OtlpTarget
from ..otlp.split import count_spans
from ..translator.encode import Options
from .codec import NoBatchError, encode, pushable
from .export_report import ExportReport
from .light import LightBatch
from .sessions import SessionIndex


class FollowIndex(SessionIndex):
    """The index of a spool as it grows, which remembers what it has seen and counted.

    So a batch is counted into segments once, whatever becomes of it: sent or not, now or after a
    restart, it stands in the same trace.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the index at `path`; only one process may have it open."""
        super().__init__(path, durable=True)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS followed (name TEXT PRIMARY KEY, counted INTEGER)"
            " WITHOUT ROWID"
        )
        rows = self._db.execute("SELECT name, counted FROM followed").fetchall()
        self._counted = {name: bool(counted) for name, counted in rows}

    def __contains__(self, name: str) -> bool:
        return name in self._counted

    def observe_once(self, name: str, batch: LightBatch) -> None:
        """Take a batch that was not there yet."""
        self.observe(batch)
        self._counted[name] = False
        self._db.execute("INSERT OR IGNORE INTO followed VALUES (?, 0)", (name,))

    def count_once(self, name: str, batch: LightBatch) -> None:
        """Count a batch's records into segments, if that was not done yet."""
        if not self._counted.get(name):
            self.count(batch)
            self._counted[name] = True
            self._db.execute("REPLACE INTO followed VALUES (?, 1)", (name,))

    def forget(self, present: set[str]) -> None:
        """Drop the names of batches that are not in the spool any more."""
        for name in self._counted.keys() - present:
            del self._counted[name]
            self._db.execute("DELETE FROM followed WHERE name = ?", (name,))


class IndexedTarget(OtlpTarget):
    """An OTLP target for batches of every origin; what they do not say, the index does."""

    def __init__(
        self, config: OtlpConfig, options: Options, index: SessionIndex, report: ExportReport
    ) -> None:
        """Raise MissingExtraError, and UsageError where a certificate or header is unusable."""
        super().__init__(config, options)
        self._index, self._report = index, report

    def _encoded(self, batch: SealedBatch) -> bytes:
        try:
            return pushable(encode(batch.name, batch.data, self._index, self._options).data)
        except NoBatchError as error:
            raise RefusedError(f"{batch.name} is no batch: {error}") from None

    def _pushed(self, request: bytes) -> Receipt:
        receipt = super()._pushed(request)
        self._report.accepted += count_spans(request) - receipt.rejected_spans
        self._report.messages += 1
        self._report.bytes_written += len(request)
        return receipt
