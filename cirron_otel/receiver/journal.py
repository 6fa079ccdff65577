"""Writing the intake journal: a request is in it and on disk before it is acknowledged.

Group commit: one thread takes everything that waits, writes it in one go, syncs once, and answers
all of it in one go. After a write or a sync that failed, the segment is never written again: what
was refused is cut off, and the next group begins a new one. (A sync that failed has dropped what it
did not write; the next one would succeed and mean nothing.)
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

from ..errors import TargetError, UsageError
from ..spool.state import lock_named, make_state, unwritable
from .journal_files import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    PREFIX_BYTES,
    Head,
    Position,
    encode_head,
    encode_header,
    encode_prefix,
    highest_number,
    segment_numbers,
    segment_path,
    segment_sizes,
    sync_directory,
    trim,
)
from .journal_place import reached_segment

_logger = logging.getLogger(__name__)
DEFAULT_SEGMENT_BYTES = 2**24
DEFAULT_MAX_BYTES = 2**30
DEFAULT_MAX_WAITING_BYTES = 2**26
_RECOUNT_SECONDS = 0.1
_IOV_MAX = 1024


class JournalFullError(TargetError):
    """A request cannot be kept now, and nothing of it is: there is no room, or no disk."""


class JournalBusyError(JournalFullError):
    """More waits to be written than may: the disk is slower than what comes in."""


class Journal:
    """The one writer of the intake journal in `directory`, for the tasks of one event loop."""

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_waiting_bytes: int = DEFAULT_MAX_WAITING_BYTES,
    ) -> None:
        """Take the journal over: lock it, and cut off what a crash left of a frame.

        A segment is left for a new one at `segment_bytes`; `max_bytes` is what all segments may
        hold together, at least twice that, for the last is not removed; `max_waiting_bytes` is
        what may wait for the disk. Raises TargetError where another process has the journal or
        the directory cannot be written, UsageError where the limits make no sense.
        """
        if not 0 < segment_bytes <= max_bytes // 2:
            raise UsageError(
                f"an intake journal of {max_bytes} bytes in segments of {segment_bytes}: expected"
                " segments of at most half of that"
            )
        self.directory = directory
        self.syncs = 0
        """How often the disk was waited for."""
        self.frames = 0
        """Frames that were acknowledged."""
        self.refused = 0
        """Frames that were refused by the disk."""
        self.trimmed_bytes = 0
        """What opening cut off: half a frame that nobody was told of."""
        self._segment_bytes, self._max_bytes = segment_bytes, max_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._work = threading.Condition(threading.Lock())
        self._queue: deque[_Waiting] = deque()
        self._waiting = self._waiting_bytes = 0
        self._is_closing = self._is_roll_wanted = False
        self._segment: _Segment | None = None
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
        """How far it is on disk and acknowledged: what a reader takes as `until`."""
        return self._end

    @property
    def waiting(self) -> int:
        """Frames that are not answered yet."""
        return self._waiting

    @property
    def waiting_bytes(self) -> int:
        """Their bytes."""
        return self._waiting_bytes

    @property
    def stored_bytes(self) -> int:
        """The bytes of all segments, as far as it is known what was removed: see `recount`."""
        segment = self._segment
        return self._closed_bytes + (segment.size if segment is not None else 0)

    async def append(self, head: Head, body: bytes) -> Position:
        """Keep a request: when this returns, it outlives a power cut. Returns where it ends.

        Frames lie in the order of the calls. Raises JournalFullError where it is not kept, for now;
        UsageError where it is too large, for good. Who is cancelled while waiting may find the
        frame in the journal.
        """
        text = encode_head(head)
        size = PREFIX_BYTES + len(text) + len(body)
        largest = min(MAX_BODY_BYTES, self._max_bytes // 2)
        if size > largest:
            raise UsageError(
                f"a request of {size} bytes: at most {largest} fit the intake journal; send less"
                " at once, or give the journal more room"
            )
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        with self._work:
            self._admit(size)
            self._queue.append(_Waiting(text, body, size, future))
            self._waiting += 1
            self._waiting_bytes += size
            self._work.notify()
        return await future

    def roll(self) -> None:
        """Begin a new segment with the next frame, so that the one before can be removed."""
        self._is_roll_wanted = True

    def recount(self) -> None:
        """Look what is there: the reader removes segments. It happens by itself when full."""
        with self._work:
            self._recount()

    async def close(self) -> None:
        """Write what waits, answer it, and let the journal go. What is appended now is refused."""
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
            # What cannot be read is the reader's to report, and nothing to stop for.
            with contextlib.suppress(OSError):
                self.trimmed_bytes = trim(self.directory, number)

    def _admit(self, size: int) -> None:
        if self._is_closing:
            raise JournalFullError("the intake journal is closed: send it again later")
        if self._waiting and self._waiting_bytes + size > self._max_waiting_bytes:
            raise JournalBusyError(
                f"{self._waiting_bytes} bytes wait to be written, {self._max_waiting_bytes} may:"
                " send it again later"
            )
        if self._is_over(size):
            if time.monotonic() - self._counted_at >= _RECOUNT_SECONDS:
                self._recount()
            if self._is_over(size):
                raise JournalFullError(
                    f"{self.stored_bytes} bytes wait to be stored, {self._max_bytes} may: send it"
                    " again later"
                )

    def _is_over(self, size: int) -> bool:
        return self.stored_bytes + self._waiting_bytes + size > self._max_bytes

    def _recount(self) -> None:
        sizes = segment_sizes(self.directory)
        if self._segment is not None:
            sizes.pop(self._segment.number, None)
        self._closed_bytes = sum(sizes.values())
        self._counted_at = time.monotonic()

    def _run(self) -> None:
        while group := self._take():
            ends: Sequence[Position] = ()
            refusal: JournalFullError | None = None
            try:
                ends = self._commit(group)
            except Exception as error:
                if not isinstance(error, OSError):
                    _logger.exception("the intake journal could not be written")
                refusal = JournalFullError(
                    f"the intake journal cannot be written: {_reason(error)}; send it again later"
                )
                self._give_up()
            self._answer(group, ends, refusal)
        if self._segment is not None:
            self._segment.close()

    def _take(self) -> list[_Waiting]:
        """Everything that waits, as far as it fits a segment; nothing once it is closed."""
        with self._work:
            while not self._queue and not self._is_closing:
                self._work.wait()
            group: list[_Waiting] = []
            room = self._segment_bytes - HEADER_BYTES
            while self._queue and (not group or self._queue[0].size <= room):
                group.append(self._queue.popleft())
                room -= group[-1].size
            return group

    def _commit(self, group: list[_Waiting]) -> list[Position]:
        size = sum(waiting.size for waiting in group)
        segment = self._segment
        if segment is not None and (
            self._is_roll_wanted or segment.size + size > self._segment_bytes
        ):
            self._leave(segment)
            segment = None
        if segment is None:
            self._is_roll_wanted = False
            number, self._number = self._number, self._number + 1
            segment = self._segment = _Segment(self.directory, number)
            segment.begin()
            self.syncs += 1
        ends = segment.write(group)
        self.syncs += 1
        return ends

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

    def _leave(self, segment: _Segment) -> None:
        with self._work:
            self._segment = None
            self._recount()
        segment.close()

    def _answer(
        self, group: list[_Waiting], ends: Sequence[Position], refusal: JournalFullError | None
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
        # The loop may have been closed: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            group[0].future.get_loop().call_soon_threadsafe(_resolve, group, ends, refusal)


class _Waiting(NamedTuple):
    """A frame that is to be written."""

    head: bytes
    body: bytes
    size: int
    future: asyncio.Future[Position]


def _resolve(
    group: list[_Waiting], ends: Sequence[Position], refusal: JournalFullError | None
) -> None:
    for index, waiting in enumerate(group):
        if waiting.future.done():  # cancelled
            continue
        if refusal is not None:
            waiting.future.set_exception(JournalFullError(str(refusal)))
        else:
            waiting.future.set_result(ends[index])


class _Segment:
    """The file that is written."""

    def __init__(self, directory: Path, number: int) -> None:
        """Make it. Raises OSError."""
        self.number, self.size = number, HEADER_BYTES
        """`size` is what is acknowledged."""
        self.path = segment_path(directory, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)

    def begin(self) -> None:
        """Write the header, and wait until the file has its name on disk. Raises OSError."""
        _write_all(self._descriptor, [encode_header(self.number)])
        os.fsync(self._descriptor)
        sync_directory(self.path.parent)

    def write(self, group: list[_Waiting]) -> list[Position]:
        """Append frames and wait until they are on disk; returns their ends. Raises OSError."""
        buffers: list[bytes | memoryview] = []
        ends = []
        offset = self.size
        for head, body, size, _ in group:
            buffers += (encode_prefix(self.number, head, body) + head, body)
            offset += size
            ends.append(Position(self.number, offset))
        _write_all(self._descriptor, buffers)
        os.fdatasync(self._descriptor)
        return ends

    def cut(self) -> None:
        """Cut off what is not acknowledged; an empty segment goes altogether. Raises OSError."""
        if self.size > HEADER_BYTES:
            os.ftruncate(self._descriptor, self.size)
            os.fsync(self._descriptor)
        else:
            self.path.unlink()

    def close(self) -> None:
        os.close(self._descriptor)


def _write_all(descriptor: int, buffers: list[bytes | memoryview]) -> None:
    index = 0
    while index < len(buffers):
        written = os.writev(descriptor, buffers[index : index + _IOV_MAX])
        while index < len(buffers) and written >= len(buffers[index]):
            written -= len(buffers[index])
            index += 1
        if written:
            buffers[index] = memoryview(buffers[index])[written:]


def _take_over(directory: Path) -> int:
    """Make the directory and lock it. Raises TargetError."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    try:
        for each in (directory.parent, directory):
            make_state(each)
        for each in missing:
            sync_directory(each.parent)
    except OSError as error:
        raise unwritable(directory, error) from None
    lock = lock_named(directory / "lock")
    if lock is None:
        raise TargetError(
            f"another collector takes requests into {directory}: give this one a spool of its own,"
            " or end the other"
        )
    return lock


def _next_number(directory: Path) -> int:
    """Above all that was ever written: positions only grow, even where all segments are gone."""
    return max(highest_number(directory), reached_segment(directory)) + 1


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)
