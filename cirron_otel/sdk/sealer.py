"""Batches into the spool: named, journalled, written; what cannot be written waits, bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from .._version import SDK_VERSION
from ..errors import CirronOtelError
from ..spool.journal import VERSION, Journal
from ..spool.owner import Owner
from ..spool.paths import file_name
from ..spool.writer import SpoolWriter
from .batch_text import BatchText
from .clock import wall_now
from .collector import FlushBuilder, FlushResult, SessionOrigin
from .errors import record_error
from .rows import SpanRow, as_raw

PENDING_BYTES = 64_000_000
"""Sealed batches that wait in memory while the spool cannot be written: a full disk."""


class Sealed(NamedTuple):
    """A batch as it goes into the spool."""

    name: str
    data: bytes
    spans: int
    marks: int
    snapshots: int


def _sealed(batch: BatchText) -> Sealed:
    name = file_name(batch.created_ns, batch.batch_id)
    return Sealed(
        name, batch.data, batch.span_count, batch.mark_count, batch.snapshot_count
    )  # fmt: skip


class BatchNames:
    """The ids and times of an owner's batches: no two of the same time, so names sort by it."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._last_ns = 0

    def __call__(self) -> tuple[str, int]:
        """The id and the time of a batch that is made now."""
        self._last_ns = max(wall_now(), self._last_ns + 1)
        return self._owner.new_batch_id(), self._last_ns


class Sealer:
    """Writes what the collector found: the journal first, then the batches."""

    kind: str | None = "spool"
    """Where batches go at the least."""

    def __init__(
        self,
        owner: Owner,
        writer: SpoolWriter,
        origin: SessionOrigin,
        written: Callable[[str], None],
    ) -> None:
        """`written` is told the name of each batch that is in the spool."""
        self._owner, self._writer, self._origin = owner, writer, origin
        self._journal = Journal(writer.paths, owner)
        self._written = written
        self._waiting: deque[Sealed] = deque()
        self._was_open: list[tuple[str, int]] = []
        self._unsealed: list[SpanRow] = []
        """Records of scopes that were journalled as open, in batches that wait."""
        self.batches = 0
        self.dropped_spans = self.dropped_marks = self.dropped_snapshots = 0
        """Records of batches that could not be written, and for which there was no room left."""
        self.is_whole = True
        """False where the session ended before all of it was written."""

    @property
    def waiting(self) -> int:
        """Batches that could not be written yet."""
        return len(self._waiting)

    def seal(self, found: FlushResult, collector: FlushBuilder) -> None:
        """Bring batches into the spool; what fails is kept, and tried again at the next flush.

        It may be called again for what it was broken off at: a batch keeps its name and bytes, and
        to write it again changes nothing.
        """
        if not found.is_sealed:
            sealed = [_sealed(batch) for batch in found.batches]
            self._unsealed = [*(self._unsealed if self._waiting else []), *found.closed]
            if sealed or self._was_open != [(row.id, row.end_ns) for row in found.open]:
                self._write_journal(found, collector, sealed[0].name if sealed else None)
            self._waiting.extend(sealed)
            found.is_sealed = True
        self._write()

    def seal_late(self, found: FlushResult) -> None:
        """Bring batches into the spool after the end: without a journal, at one attempt."""
        found.is_sealed = True
        self._waiting.extend(map(_sealed, found.batches))
        self._write()

    def finish(self) -> None:
        """Everything is sealed: no journal is needed any more. What could not be written goes."""
        self._write()
        if self._waiting:
            self._drop(0)
            self.is_whole = False
        if not self.is_whole:
            return  # the journal tells what is missing
        try:
            self._journal.remove()
        except CirronOtelError as error:
            record_error("journal", error)

    def _write(self) -> None:
        while self._waiting:
            batch = self._waiting[0]
            try:
                self._writer.write(batch.data, batch.name)
            except CirronOtelError as error:
                record_error("spool", error)
                self._drop(PENDING_BYTES)
                return
            self._waiting.popleft()
            self.batches += 1
            self._written(batch.name)

    def _drop(self, most_bytes: int) -> None:
        """Give up the oldest of what waits, above so many bytes, and count it."""
        left = sum(len(batch.data) for batch in self._waiting)
        while self._waiting and left > most_bytes:
            batch = self._waiting.popleft()
            left -= len(batch.data)
            self.dropped_spans += batch.spans
            self.dropped_marks += batch.marks
            self.dropped_snapshots += batch.snapshots

    def _write_journal(
        self, found: FlushResult, collector: FlushBuilder, next_batch: str | None
    ) -> None:
        origin = self._origin
        try:
            self._journal.write(
                msgspec.json.encode(
                    {
                        "version": VERSION,
                        "owner": self._owner.prefix,
                        "session": origin.session_id,
                        "pid": origin.pid,
                        "rank": origin.rank,
                        "written_ns": wall_now(),
                        "sdk_version": SDK_VERSION,
                        "otel": as_raw(collector.base_otel()),
                        "next_batch": next_batch,
                        "open": [as_raw(row) for row in found.open if not row.end_ns],
                        "closed": [
                            as_raw(row) for row in (*self._unsealed, *found.open) if row.end_ns
                        ],
                    }
                )
            )
            self._was_open = [(row.id, row.end_ns) for row in found.open]
        except (CirronOtelError, msgspec.MsgspecError) as error:
            record_error("journal", error)


class Unwritten(Sealer):
    """Where no spool was asked for (`output` without `spool`, and nothing exported): nothing is
    written, and no directory made.
    """

    kind = None

    def seal(self, found: FlushResult, collector: FlushBuilder) -> None:  # noqa: ARG002
        """What was found is shown to the sinks and to `trace()`, and forgotten."""
        found.is_sealed = True

    def seal_late(self, found: FlushResult) -> None:
        """The same."""
        found.is_sealed = True

    def finish(self) -> None:
        """There is no journal."""
