"""Save what could not be sealed in time, when the process has to end.

The remainder contains the batches that wait for the disk, and new batches of all other records,
without the SDK's own overhead marks. It is neither synced nor proved, and has no journal,
so writing it takes a fraction of the time that sealing takes. Recovery seals it
(`core.spool.remainder`).
"""

from __future__ import annotations

import contextlib
import gc
from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from time import monotonic

from ...core.spool.owner import Owner
from ...core.spool.remainder import Left, RemainderFile, left_line
from ...errors import CirronOtelError
from ..session.errors import record_error
from ..tracing import buffers as buf
from ..tracing.buffers import MarkEntry
from ..tracing.open_scopes import end_of
from .assembly import MAX_SPANS, TimeOverError
from .batch_text import BatchText
from .drain import Drained
from .flush_result import RecordCounts
from .rest_builder import RestBuilder
from .sealer import Sealer


def _nothing() -> None:
    pass


class Remainder:
    """Writes the remainder of one session; used once, by the owner of the flush side."""

    def __init__(
        self, owner: Owner, builder: RestBuilder, sealer: Sealer, record_left: Callable[[], None]
    ) -> None:
        """`record_left` sets the attributes of the session that count what is lost."""
        self._owner, self._builder, self._sealer = owner, builder, sealer
        self._record_left = record_left
        self._file: RemainderFile | None = None
        self._seen = RecordCounts()
        """Records in the batches that were built."""
        self._is_written = True
        """Whether all batches could be written."""
        self.saved = RecordCounts()
        """Records in the remainder."""

    def save(self, until: float) -> None:
        """Save everything that is in no sealed batch, until about the time `until` (monotonic s).

        Records for which no time is left, or that cannot be written, are counted in `builder.left`
        and on the session. The records of the session and of the other open scopes are saved in
        any case. Raises nothing.
        """
        builder, sealer = self._builder, self._sealer
        with self._opened(), _without_collections():
            for sealed in sealer.take_waiting():
                self._emit(sealed.data, sealed.spans, sealed.marks, sealed.snapshots)
            try:
                batches, rest, closing = builder.take_rest()
            except Exception as error:  # a bug
                record_error("remainder", error)
                self.count_lost()
                return
            for batch in batches:
                self._emit_batch(batch)
            if self._is_over_before(rest, until):
                builder.left.marks += len(closing.marks)
                closing.marks = []
            if builder.left:
                self._record_left()
            self._assemble(closing, _nothing, has_open=True)
        if self._is_written and self.saved:
            sealer.remove_journal()  # otherwise, it has the open scopes

    def count_lost(self) -> None:
        """Count everything that is in no sealed batch as lost.

        The numbers are estimates if another thread works on these records, and does not give up the
        flush side.
        """
        left, sealer = self._builder.left, self._sealer
        left.add(*self._builder.taken)
        for buffers in tuple(buf.registry):
            left.add(len(buffers.scopes) + len(buffers.foreign), len(buffers.marks), 0)
        for sealed in sealer.waiting_batches:
            left.add(sealed.spans, sealed.marks, sealed.snapshots)
        self._record_left()
        if not left:
            return
        with self._opened():
            try:
                if self._file is not None:
                    self._file.add(left_line(Left(left.spans, left.marks, left.snapshots)))
            except CirronOtelError as error:
                record_error("remainder", error)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        """Use the file inside the block; without a spool, everything is counted as lost."""
        if self._file is not None or self._sealer.kind is None:
            yield
            return
        self._file = RemainderFile(self._sealer.paths, self._owner.prefix)
        try:
            yield
        finally:
            try:
                self._file.close()
            except CirronOtelError as error:  # some file systems report a full disk only now
                record_error("remainder", error)
                self._is_written = False
                saved, self.saved = self.saved, RecordCounts()
                self._builder.left.add(saved.spans, saved.marks, saved.snapshots)
            self._file = None

    def _emit_batch(self, batch: BatchText) -> None:
        self._emit(batch.data, batch.span_count, batch.mark_count, batch.snapshot_count)

    def _emit(self, data: bytes, *counts: int) -> None:
        """Write a batch, or count its records as lost."""
        self._seen.add(*counts)
        try:
            if self._file is not None:
                self._file.add(data)
                self.saved.add(*counts)
                return
        except CirronOtelError as error:
            record_error("remainder", error)
        self._is_written = False
        self._builder.left.add(*counts)

    def _is_over_before(self, rest: Drained, until: float) -> bool:
        """Save the records of scopes that have ended; return whether the time was over before."""

        def checkpoint() -> None:
            if monotonic() >= until:
                raise TimeOverError

        parts = list(_parts(rest))
        for number, part in enumerate(parts):
            if self._assemble(part, checkpoint, has_open=False):
                for other in parts[number + 1 :]:
                    self._builder.left.add(*_counts(other))
                return True
        return False

    def _assemble(
        self, drained: Drained, checkpoint: Callable[[], None], *, has_open: bool
    ) -> bool:
        """Save records; count what is not saved as lost, and return whether the time was over."""
        builder, seen = self._builder, self._seen
        total = _counts(drained)
        before = [
            seen.spans + builder.spans_lost,
            seen.marks + builder.marks_lost,
            seen.snapshots + builder.snapshots_lost,
        ]
        is_over = False
        try:
            builder.assemble_rest(drained, self._emit_batch, checkpoint, has_open=has_open)
        except TimeOverError:
            is_over = True
        except Exception as error:  # a bug
            record_error("remainder", error)
        after = [
            seen.spans + builder.spans_lost,
            seen.marks + builder.marks_lost,
            seen.snapshots + builder.snapshots_lost,
        ]
        missing = [
            max(expected + start - end, 0)
            for expected, start, end in zip(total, before, after, strict=True)
        ]
        builder.left.add(*missing)
        return is_over


def _counts(drained: Drained) -> tuple[int, int, int]:
    """Return the numbers of spans, marks and snapshots."""
    return (
        len(drained.ended) + len(drained.foreign),
        len(drained.marks),
        sum(each.size for each in drained.snapshots),
    )


def _parts(rest: Drained) -> Iterator[Drained]:
    """Yield the records in parts, in the order of time, so that the first batch is soon complete.

    The last part also has the snapshots, and the spans of other libraries.
    """
    scopes, marks = rest.ended, rest.marks
    scopes.sort(key=attrgetter("_end"))
    marks.sort(key=_no_later_than_its_scope)
    mark_at = 0
    for at in range(0, len(scopes), MAX_SPANS):
        part = scopes[at : at + MAX_SPANS]
        until = bisect_right(marks, part[-1]._end, mark_at, key=_no_later_than_its_scope)
        yield Drained(part, [], marks[mark_at:until], {}, {}, {}, is_last=False)
        mark_at = until
    last = Drained([], rest.foreign, marks[mark_at:], {}, {}, {}, is_last=False)
    last.snapshots = rest.snapshots
    yield last


def _no_later_than_its_scope(entry: MarkEntry) -> int:
    """Return the time of a mark, or the end of its scope if that is earlier.

    A scope can end, for example a step with its last phase, and still get a mark. A mark in a later
    part than its scope would not be listed by the span.
    """
    end = end_of(entry[0])
    return min(entry[3], end) if end else entry[3]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Turn garbage collection off: with the objects of a large program, it can take a second."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
