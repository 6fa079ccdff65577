"""Name batches, record them in the journal, and write them to the spool.

Batches that cannot be written wait in memory, up to a limit. Only the owner of the flush side uses
the sealer; it lends the flush side while it waits for a file (`ownership`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from ..._version import SDK_VERSION
from ...core.spool.journal import VERSION, OwnerJournal
from ...core.spool.owner import Owner
from ...core.spool.paths import file_name
from ...core.spool.state import BAD_SUFFIX, make_state, replace_file
from ...core.spool.writer import SpoolWriter
from ...errors import CirronOtelError
from ..session.errors import record_error
from ..tracing.clock import wall_now
from .batch_text import BatchText
from .flush_builder import FlushBuilder
from .flush_result import FlushResult, SessionOrigin
from .ownership import FlushOwnership
from .proof import fault_of
from .rows import SpanRow, as_raw

PENDING_BYTES = 64_000_000
"""Maximum bytes of sealed batches in memory while the spool cannot be written (disk full)."""


class Sealed(NamedTuple):
    """A batch's file name and content in the spool, and its number of records of each kind."""

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
    """Ids and times of an owner's batches; the times are distinct, so names sort by time."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._last_ns = 0

    def __call__(self) -> tuple[str, int]:
        """Return the id and the time of a batch that is created now."""
        self._last_ns = max(wall_now(), self._last_ns + 1)
        return self._owner.new_batch_id(), self._last_ns


class Sealer:
    """Writes the results of flushes: first the journal, then the batches."""

    kind: str | None = "spool"
    """The kind of storage that batches are written to; None if they are not written."""

    def __init__(
        self,
        owner: Owner,
        writer: SpoolWriter,
        origin: SessionOrigin,
        written: Callable[[str], None],
        ownership: FlushOwnership,
    ) -> None:
        """`written` is called with the name of each batch that is in the spool."""
        self._ownership = ownership
        self.paths = writer.paths
        self._owner, self._writer, self._origin = owner, writer, origin
        self._journal = OwnerJournal(writer.paths, owner)
        self._written = written
        self._waiting: deque[Sealed] = deque()
        self._was_open: list[tuple[str, int]] = []
        self._unsealed: list[SpanRow] = []
        """Records in waiting batches whose scopes are open in the journal."""
        self.batches = 0
        self.dropped_spans = self.dropped_marks = self.dropped_snapshots = 0
        """Records of batches that could not be written and no longer fit in memory."""
        self.set_aside = 0
        """Batches whose text does not have the records that it should have."""
        self.is_whole = True
        """False if the session ended before everything was written."""

    @property
    def waiting_batches(self) -> tuple[Sealed, ...]:
        """The batches that could not be written yet; any thread may read them."""
        return tuple(self._waiting.copy())

    @property
    def waiting(self) -> int:
        """The number of batches that could not be written yet."""
        return len(self._waiting)

    def seal(self, result: FlushResult, builder: FlushBuilder) -> None:
        """Write batches to the spool; those that fail are kept and retried at the next flush.

        It may be called again after an interruption: a batch keeps its name and bytes, so writing
        it again changes nothing.
        """
        self._ownership.check()
        if not result.is_sealed:
            sealed = [_sealed(batch) for batch in result.batches]
            self._unsealed = [*(self._unsealed if self._waiting else []), *result.closed]
            if sealed or self._was_open != [(row.id, row.end_ns) for row in result.open]:
                self._write_journal(result, builder, sealed[0].name if sealed else None)
            self._waiting.extend(sealed)
            result.is_sealed = True
        self._write()

    def seal_late(self, result: FlushResult) -> None:
        """Write batches to the spool once, without a journal, after the end of the session."""
        self._ownership.check()
        result.is_sealed = True
        self._waiting.extend(map(_sealed, result.batches))
        self._write()

    def finish(self) -> None:
        """Write the waiting batches, dropping those that fail; remove the journal if none did."""
        self._ownership.check()
        self._write()
        if self._waiting:
            self._drop(0)
            self.is_whole = False
        if not self.is_whole:
            return  # the journal records what is missing
        self.remove_journal()

    def take_waiting(self) -> Iterator[Sealed]:
        """Yield the batches that are not in the spool, and forget each one afterwards."""
        self._ownership.check()
        while self._waiting:
            yield self._waiting[0]
            self._waiting.popleft()

    def _write(self) -> None:
        while self._waiting:
            batch = self._waiting[0]
            self._ownership.checkpoint()
            try:
                if not self._is_proved(batch):
                    self._waiting.popleft()
                    continue
                self._ownership.lend(
                    partial(
                        self._writer.write,
                        batch.data,
                        batch.name,
                        has_snapshots=bool(batch.snapshots),
                    )
                )
            except CirronOtelError as error:
                record_error("spool", error)
                self._drop(PENDING_BYTES)
                return
            self._waiting.popleft()
            self.batches += 1
            self._written(batch.name)

    def _is_proved(self, batch: Sealed) -> bool:
        """Return whether a batch has all of its records; keep it aside in `state/` if not."""
        problem = fault_of(batch.data, (batch.spans, batch.marks, batch.snapshots))
        if problem is None:
            return True
        path = self.paths.state / f"{batch.name}{BAD_SUFFIX}"
        make_state(self.paths.state)
        self._ownership.lend(partial(replace_file, path, batch.data))
        self.set_aside += 1
        record_error("batch", f"{path} is set aside: {problem}; please report this")
        return False

    def _drop(self, most_bytes: int) -> None:
        """Drop and count the oldest waiting batches above `most_bytes`."""
        left = sum(len(batch.data) for batch in self._waiting)
        while self._waiting and left > most_bytes:
            batch = self._waiting.popleft()
            left -= len(batch.data)
            self.dropped_spans += batch.spans
            self.dropped_marks += batch.marks
            self.dropped_snapshots += batch.snapshots

    def _write_journal(
        self, result: FlushResult, builder: FlushBuilder, next_batch: str | None
    ) -> None:
        origin = self._origin
        try:
            state = msgspec.json.encode(
                {
                    "version": VERSION,
                    "owner": self._owner.prefix,
                    "session": origin.session_id,
                    "pid": origin.pid,
                    "rank": origin.rank,
                    "written_ns": wall_now(),
                    "sdk_version": SDK_VERSION,
                    "otel": as_raw(builder.otel.base()),
                    "next_batch": next_batch,
                    "open": [as_raw(row) for row in result.open if not row.end_ns],
                    "closed": [
                        as_raw(row) for row in (*self._unsealed, *result.open) if row.end_ns
                    ],
                    "oom_kills": origin.oom_kills,
                }
            )
            self._ownership.lend(partial(self._journal.write, state))
            self._was_open = [(row.id, row.end_ns) for row in result.open]
        except (CirronOtelError, OSError, msgspec.MsgspecError) as error:
            record_error("journal", error)

    def remove_journal(self) -> None:
        """Remove the journal: recovery does not need it."""
        try:
            self._journal.remove()
        except CirronOtelError as error:
            record_error("journal", error)


class Unwritten(Sealer):
    """Writes nothing and creates no directory; used without a spool.

    There is no spool if `output` does not contain `spool` and nothing is exported.
    """

    kind = None

    def seal(self, result: FlushResult, builder: FlushBuilder) -> None:  # noqa: ARG002
        """Mark the result as sealed: only the sinks and `trace()` use it."""
        result.is_sealed = True

    def seal_late(self, result: FlushResult) -> None:
        """Mark the result as sealed."""
        result.is_sealed = True

    def finish(self) -> None:
        """Do nothing: there is no journal."""

    def take_waiting(self) -> Iterator[Sealed]:
        """Yield nothing."""
        return iter(())
