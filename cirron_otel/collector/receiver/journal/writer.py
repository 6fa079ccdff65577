"""Write the intake journal, in which each request is on disk before it is acknowledged.

It uses group commit: one thread takes all waiting requests, writes them together, syncs once, and
answers them together. After a failed write or sync, the segment is never written again: the refused
frames are cut off, and the next group begins a new segment. (A failed sync drops the pages that it
did not write, so a later sync would succeed without effect.) The same applies if the directory has
been removed: syncing a file without a name succeeds, but the file disappears when it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ....core.spool.state import has_name, lock_named, make_state
from ....errors import TargetError, UsageError
from .files import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    PREFIX_BYTES,
    Head,
    Position,
    aside_bytes,
    checksum,
    encode_head,
    highest_number,
    segment_numbers,
    segment_sizes,
    trim,
)
from .position import reached_segment
from .segment import WrittenSegment

_logger = logging.getLogger(__name__)
DEFAULT_SEGMENT_BYTES = 2**24
DEFAULT_MAX_BYTES = 2**30
DEFAULT_MAX_WAITING_BYTES = 2**26
_RECOUNT_SECONDS = 0.1
_LOCK = "lock"


class JournalFullError(TargetError):
    """A request cannot be stored now because the journal or the disk is full; no part of it is
    stored.
    """


class JournalBusyError(JournalFullError):
    """Too many bytes wait to be written: the disk is slower than the incoming requests."""


class IntakeJournal:
    """The only writer of the intake journal in `directory`, for the tasks of one event loop."""

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_waiting_bytes: int = DEFAULT_MAX_WAITING_BYTES,
    ) -> None:
        """Take over the journal: lock it, and cut off an incomplete frame that a crash left.

        A new segment begins after `segment_bytes`. `max_bytes` limits the total size of all
        segments, not counting the padding of the last one to a complete block; it must be at least
        twice `segment_bytes`, because the last segment is never removed. `max_waiting_bytes` limits
        the bytes that wait for the disk. Raises TargetError if another process uses the journal or
        the directory cannot be written, and UsageError if the limits are inconsistent.
        """
        if not 0 < segment_bytes <= max_bytes // 2:
            raise UsageError(
                f"an intake journal of {max_bytes} bytes in segments of {segment_bytes}: expected"
                " segments of at most half of that"
            )
        self.directory = directory
        self.syncs = 0
        """Number of syncs."""
        self.frames = 0
        """Number of acknowledged frames."""
        self.refused = 0
        """Number of frames that were refused because the disk failed."""
        self.trimmed_bytes = 0
        """Bytes cut off at the start: an unacknowledged incomplete frame, or padding."""
        self._segment_bytes, self._max_bytes = segment_bytes, max_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._work = threading.Condition(threading.Lock())
        self._queue: deque[_PendingFrame] = deque()
        self._waiting = self._waiting_bytes = 0
        self._is_closing = False
        self._left_up_to = 0
        """The number of the last segment that must not be written again."""
        self._segment: WrittenSegment | None = None
        self._lock: int | None = _take_over(directory)
        try:
            self._trim()
            self._number = _next_number(directory)
        except BaseException:
            self._unlock()
            raise
        self._end = Position(self._number, 0)
        self._closed_bytes = 0
        self._counted_at = 0.0
        self.recount()
        self._thread = threading.Thread(target=self._run, name="cirron-intake", daemon=True)
        self._thread.start()

    @property
    def end(self) -> Position:
        """The end of the acknowledged frames on disk; pass it to readers as `until`."""
        return self._end

    @property
    def waiting(self) -> int:
        """Number of frames that wait for the disk."""
        return self._waiting

    @property
    def waiting_bytes(self) -> int:
        """Bytes of frames that wait for the disk."""
        return self._waiting_bytes

    @property
    def stored_bytes(self) -> int:
        """The total size of all segments and of the files that were set aside, bytes.

        Removed files are counted until the next `recount`.
        """
        segment = self._segment
        return self._closed_bytes + (segment.size if segment is not None else 0)

    async def append(self, head: Head, body: bytes) -> Position:
        """Append a request, and return the position of the end of its frame.

        When this returns, the request survives a power cut. Frames are written in the order of the
        calls. Raises JournalFullError if the request cannot be stored now, and UsageError if it is
        too large for the journal. If the caller is cancelled while it waits, the frame may still be
        in the journal.
        """
        text = encode_head(head)
        size = PREFIX_BYTES + len(text) + len(body)
        largest = min(MAX_BODY_BYTES, self._max_bytes // 2)
        if size > largest:
            raise UsageError(
                f"a request of {size} bytes: the intake journal accepts at most {largest}; send"
                " less at once, or raise its limit"
            )
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        with self._work:
            self._admit(size)
        # Compute the checksum only for admitted requests. Compute it here and not in the writer
        # thread, which would wait for the interpreter's lock after each checksum.
        crc = checksum(text, body)
        with self._work:
            self._admit(size)
            self._queue.append(_PendingFrame(text, body, size, crc, future))
            self._waiting += 1
            self._waiting_bytes += size
            self._work.notify()
        return await future

    def roll(self, number: int | None = None) -> None:
        """Begin a new segment with the next frame, so that the current segment can be removed.

        `number` is that of a damaged segment: if a later segment is current, do nothing.
        """
        segment = self._segment
        written = 0 if segment is None else segment.number
        self._left_up_to = max(self._left_up_to, written if number is None else number)

    def recount(self) -> None:
        """Recount the stored bytes, because the reader removes segments.

        This happens automatically when the journal is full.
        """
        with self._work:
            self._recount()

    async def close(self) -> None:
        """Write and answer the waiting frames, and release the journal. Later appends fail."""
        with self._work:
            self._is_closing = True
            self._work.notify()
        await asyncio.to_thread(self._thread.join)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _trim(self) -> None:
        for number in segment_numbers(self.directory)[-1:]:
            # Continue if a segment cannot be read: the reader reports it.
            with contextlib.suppress(OSError):
                self.trimmed_bytes = trim(self.directory, number)

    def _admit(self, size: int) -> None:
        if self._is_closing:
            raise JournalFullError("the intake journal is closed: send it again later")
        if self._waiting and self._waiting_bytes + size > self._max_waiting_bytes:
            raise JournalBusyError(
                f"{self._waiting_bytes} bytes wait to be written, and the limit is"
                f" {self._max_waiting_bytes}: send it again later"
            )
        if self._is_over(size):
            if time.monotonic() - self._counted_at >= _RECOUNT_SECONDS:
                self._recount()
            if self._is_over(size):
                raise JournalFullError(
                    f"{self.stored_bytes} bytes wait to be stored or were set aside,"
                    f" {self._max_bytes} may: send it again later"
                )

    def _is_over(self, size: int) -> bool:
        return self.stored_bytes + self._waiting_bytes + size > self._max_bytes

    def _recount(self) -> None:
        sizes = segment_sizes(self.directory)
        if self._segment is not None:
            sizes.pop(self._segment.number, None)
        self._closed_bytes = sum(sizes.values()) + aside_bytes(self.directory)
        self._counted_at = time.monotonic()

    def _run(self) -> None:
        while group := self._take():
            ends: Sequence[Position] = ()
            refusal: JournalFullError | None = None
            try:
                ends = self._commit(group)
            except Exception as error:
                if not isinstance(error, OSError | TargetError):
                    _logger.exception("the intake journal could not be written")
                refusal = JournalFullError(
                    f"the intake journal cannot be written: {_reason(error)}; send it again later"
                )
                self._give_up()
            self._answer(group, ends, refusal)
        if self._segment is not None:
            self._segment.close()

    def _take(self) -> list[_PendingFrame]:
        """Return the waiting frames that fit into one segment; none after `close`."""
        with self._work:
            while not self._queue and not self._is_closing:
                self._work.wait()
            group: list[_PendingFrame] = []
            room = self._segment_bytes - HEADER_BYTES
            while self._queue and (not group or self._queue[0].size <= room):
                group.append(self._queue.popleft())
                room -= group[-1].size
            return group

    def _commit(self, group: list[_PendingFrame]) -> list[Position]:
        size = sum(waiting.size for waiting in group)
        segment = self._segment
        if segment is not None and (
            segment.number <= self._left_up_to or segment.size + size > self._segment_bytes
        ):
            self._leave(segment)
            segment = None
        if segment is None:
            self._hold()
            number, self._number = self._number, self._number + 1
            segment = self._segment = WrittenSegment(self.directory, number)
            segment.begin()
            self.syncs += 1
        ends = segment.write([waiting[:4] for waiting in group])
        self.syncs += 1
        return ends

    def _hold(self) -> None:
        """Recreate and lock the directory if it has been removed. Raises TargetError."""
        lock = self._lock
        if lock is None or has_name(lock, self.directory / _LOCK):
            return
        _logger.warning("%s was removed or moved: it is recreated", self.directory)
        self._lock = _take_over(self.directory)
        os.close(lock)
        self._number = max(self._number, _next_number(self.directory))

    def _give_up(self) -> None:
        segment = self._segment
        if segment is not None:
            try:
                segment.cut()
            except OSError as error:
                _logger.warning(
                    "%s: refused requests could not be cut off: %s", segment.path, _reason(error)
                )
            self._leave(segment)

    def _leave(self, segment: WrittenSegment) -> None:
        with self._work:
            self._segment = None
            self._recount()
        segment.close()

    def _answer(
        self, group: list[_PendingFrame], ends: Sequence[Position], refusal: JournalFullError | None
    ) -> None:
        with self._work:
            self._waiting -= len(group)
            self._waiting_bytes -= sum(waiting.size for waiting in group)
            if refusal is not None:
                self.refused += len(group)
            else:
                self.frames += len(group)
                self._end = ends[-1]
                if self._segment is not None:
                    self._segment.size = self._end.offset
        # If the loop has been closed, no task waits for the answer.
        with contextlib.suppress(RuntimeError):
            group[0].future.get_loop().call_soon_threadsafe(_resolve, group, ends, refusal)


class _PendingFrame(NamedTuple):
    """A frame that waits to be written."""

    head: bytes
    body: bytes
    size: int
    crc: int
    future: asyncio.Future[Position]


def _resolve(
    group: list[_PendingFrame], ends: Sequence[Position], refusal: JournalFullError | None
) -> None:
    for index, waiting in enumerate(group):
        if waiting.future.done():  # cancelled
            continue
        if refusal is not None:
            waiting.future.set_exception(JournalFullError(str(refusal)))
        else:
            waiting.future.set_result(ends[index])


def _take_over(directory: Path) -> int:
    """Create the directory and lock it. Raises TargetError."""
    make_state(directory)
    lock = lock_named(directory / _LOCK)
    if lock is None:
        raise TargetError(
            f"another collector stores requests in {directory}: use a separate spool for this one,"
            " or stop the other"
        )
    return lock


def _next_number(directory: Path) -> int:
    """Return a segment number above all earlier ones: positions must only increase, even if no
    segment is left.
    """
    return max(highest_number(directory), reached_segment(directory)) + 1


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)
