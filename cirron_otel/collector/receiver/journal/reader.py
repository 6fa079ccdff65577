"""Read the intake journal; used by the process that stores its requests in the spool.

Whatever the files contain, the reader returns only frames that were appended, each of them once, in
order. Unreadable parts are reported and skipped, and a copy of their file is kept as
`<name>.damaged`.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from ....core.spool.direct import BLOCK
from ....errors import InputError
from .files import (
    HEAD_START,
    HEADER_BYTES,
    PREFIX_BYTES,
    Damage,
    Frame,
    OnDamage,
    Position,
    Prefix,
    checksum,
    decode_head,
    decode_prefix,
    header_problem,
    is_whole_header,
    segment_numbers,
    segment_path,
    set_aside,
)

_logger = logging.getLogger(__name__)
_AHEAD_BYTES = 2**14
_POLL_BYTES = 2**23
_FOR_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})


def frames(
    directory: Path, after: Position | None = None, on_damage: OnDamage | None = None
) -> Iterator[Frame]:
    """Yield all frames after a position, up to the current end, with only one in memory at a time.

    `JournalReader` describes the treatment of damage.
    """
    reader = JournalReader(directory, after, on_damage)
    try:
        while batch := reader.poll(max_bytes=1):
            yield from batch
    finally:
        reader.close()


class JournalReader:
    """Reads a journal from a given position, and continues as it grows.

    `on_damage` is called for parts that cannot be read (the default logs a warning):

    - a frame whose checksum does not match: it is skipped;
    - a frame with a damaged prefix, or a damaged header: everything up to the next complete frame
      is skipped;
    - an incomplete frame at the end of a segment that is not the last. At the end of the last
      segment, it is a frame that is being written;
    - a file that is not a segment, or cannot be opened.

    In each case the writer should `roll` if it is writing that segment: a request in a file that
    cannot be trusted must not be acknowledged.
    """

    def __init__(
        self, directory: Path, after: Position | None = None, on_damage: OnDamage | None = None
    ) -> None:
        """Start after the position `after`; if it is None, start with the oldest segment."""
        self._directory = directory
        self._after = after or Position(0, 0)
        self._on_damage = on_damage or _log
        self._segment: _Segment | None = None

    @property
    def position(self) -> Position:
        """The end of the last frame that was returned or skipped."""
        if self._segment is None:
            return self._after
        return Position(self._segment.number, self._segment.offset)

    def poll(self, max_bytes: int = _POLL_BYTES, until: Position | None = None) -> list[Frame]:
        """Return the next frames, up to about `max_bytes`; at least one frame if there is any.

        `until` is the end of the acknowledged frames (`IntakeJournal.end`): frames after it may be
        incomplete, or may still be refused and cut off. Without it, all complete frames are read,
        which requires that no process writes the journal. Raises InputError if a file cannot be
        opened now (no descriptors, no memory); nothing is skipped in that case.
        """
        result: list[Frame] = []
        size = 0
        while size < max_bytes and (frame := self._next(until)) is not None:
            result.append(frame)
            size += frame.end.offset - frame.start.offset
        return result

    def close(self) -> None:
        """Close the open file. A later `poll` continues at the same position."""
        self._leave(self.position)

    def _next(self, until: Position | None) -> Frame | None:
        while True:
            if self._segment is None and not self._enter(until):
                return None
            segment = self._segment
            assert segment is not None  # noqa: S101
            if until is not None and until.segment > segment.number:
                segment.finish()
            limit = until.offset if until and until.segment == segment.number else None
            frame = segment.read(limit)
            if frame is not None:
                return frame
            if not segment.is_finished:
                if limit is not None or self._later(segment.number) is None:
                    return None
                # Frames may have been written between the last read and the start of the later
                # segment: read again.
                segment.finish()
                continue
            segment.check_end()
            self._leave(Position(segment.number + 1, 0))

    def _enter(self, until: Position | None) -> bool:
        """Open the first segment that has not been read completely; False if there is none."""
        while (number := self._later(self._after.segment - 1)) is not None:
            if until is not None and number > until.segment:
                return False
            offset = self._after.offset if number == self._after.segment else 0
            path = segment_path(self._directory, number)
            try:
                self._segment = _Segment(path, number, offset, self._on_damage)
                return True
            except FileNotFoundError:
                pass
            except OSError as error:
                reason = error.strerror or str(error)
                if error.errno in _FOR_NOW:
                    raise InputError(f"{path} cannot be opened for now: {reason}") from None
                message = f"cannot be opened: {reason}"
                self._on_damage(Damage(number, path, 0, message, set_aside(path)))
            self._after = Position(number + 1, 0)
        return False

    def _leave(self, after: Position) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._after = after

    def _later(self, number: int) -> int | None:
        return next((each for each in segment_numbers(self._directory) if each > number), None)


class _Segment:
    """One segment file, read from an offset on."""

    def __init__(self, path: Path, number: int, offset: int, on_damage: OnDamage) -> None:
        self.number, self.offset = number, max(offset, HEADER_BYTES)
        self.is_finished = False
        """Whether no more frames will be appended to the segment."""
        self._path, self._on_damage = path, on_damage
        self._is_begun = self._is_broken = False
        self._searched: int | None = None
        """The end of the part searched for a complete frame; None if no search is in progress."""
        self._ahead, self._ahead_at = b"", 0
        self._limit: int | None = None
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file")

    def close(self) -> None:
        os.close(self._descriptor)

    def finish(self) -> None:
        """Record that no more frames will be appended; drop the bytes read ahead, which may be
        incomplete.
        """
        if not self.is_finished:
            self.is_finished, self._ahead = True, b""

    def read(self, limit: int | None) -> Frame | None:
        """Return the next readable frame that ends by `limit`; None if there is none yet."""
        self._limit = limit
        frame = self._next(limit)
        if frame is None:
            self._ahead = b""  # it does not contain data written from now on
        return frame

    def _next(self, limit: int | None) -> Frame | None:
        try:
            while not self._is_broken and (self._is_begun or self._begin()):
                if limit is not None and self.offset >= limit:
                    return None
                if self._searched is not None and not self._search(limit):
                    return None
                data = self._at(self.offset, PREFIX_BYTES)
                if len(data) < PREFIX_BYTES:
                    return None
                prefix = decode_prefix(data, self.number)
                if prefix is None:
                    if os.pread(self._descriptor, PREFIX_BYTES, self.offset) != data:
                        self._ahead = b""  # these bytes were padding when they were read ahead
                        continue
                    if limit is None and self._is_padding():
                        return None
                    self._searched = self.offset + 1
                    self._report(
                        self.offset,
                        "a frame with a damaged prefix: skipping to the next complete frame",
                    )
                    continue
                end = self.offset + PREFIX_BYTES + prefix.head_bytes + prefix.body_bytes
                if limit is not None and end > limit:
                    return None
                content = self._content(prefix)
                if content is None:
                    return None
                start, self.offset = self.offset, end
                frame = self._frame(start, end, prefix, content)
                if frame is not None:
                    return frame
        except OSError as error:
            self._break(f"cannot be read: {error.strerror or error}")
        return None

    def check_end(self) -> None:
        """Report the bytes after the last frame of a finished segment."""
        if self._is_broken or self._searched is not None:
            return
        if not self._is_begun:
            self._break("the header is incomplete: the segment cannot be read")
            return
        try:
            next_byte = self._at(self.offset, 1)
        except OSError as error:
            self._break(f"cannot be read: {error.strerror or error}")
        else:
            if next_byte and not self._is_padding():
                self._break("an incomplete frame at the end")

    def _is_padding(self) -> bool:
        """Return whether only a block's zero padding follows; frames may still be written there."""
        size = os.fstat(self._descriptor).st_size
        rest = os.pread(self._descriptor, BLOCK, self.offset)
        return self.offset + len(rest) == size and not rest.strip(b"\0")

    def _begin(self) -> bool:
        data = self._at(0, HEADER_BYTES)
        if len(data) < HEADER_BYTES:
            return False
        problem = header_problem(data, self.number)
        if problem is not None and is_whole_header(data, self.number):
            self._break(problem)
            return False
        self._is_begun = True
        if problem is not None:
            self._report(0, problem)
            self._searched = self.offset
        return True

    def _search(self, limit: int | None) -> bool:
        """Find the next complete frame by the start of its head; False if there is none yet."""
        assert self._searched is not None  # noqa: S101
        size = os.fstat(self._descriptor).st_size
        end = size if limit is None else min(limit, size)
        begin = self._searched
        data = os.pread(self._descriptor, max(end - begin, 0), begin)
        index = data.find(HEAD_START, PREFIX_BYTES)
        while index >= 0:
            offset = begin + index - PREFIX_BYTES
            prefix = decode_prefix(data[index - PREFIX_BYTES : index], self.number)
            if prefix is not None:
                frame = data[index : index + prefix.head_bytes + prefix.body_bytes]
                if len(frame) == prefix.head_bytes + prefix.body_bytes:
                    if zlib.crc32(frame) == prefix.crc:
                        self.offset, self._searched = offset, None
                        return True
                elif limit is None and not self.is_finished:  # it is being written
                    self._searched = offset
                    return False
            index = data.find(HEAD_START, index + 1)
        self._searched = max(begin, end - PREFIX_BYTES - len(HEAD_START))
        return False

    def _content(self, prefix: Prefix) -> tuple[bytes, bytes] | None:
        at = self.offset + PREFIX_BYTES
        head = self._at(at, prefix.head_bytes)
        body = self._at(at + len(head), prefix.body_bytes)
        is_whole = len(head) == prefix.head_bytes and len(body) == prefix.body_bytes
        return (head, body) if is_whole else None

    def _frame(
        self, start: int, end: int, prefix: Prefix, content: tuple[bytes, bytes]
    ) -> Frame | None:
        text, body = content
        if checksum(text, body) != prefix.crc:
            self._report(start, "a frame with a wrong checksum: it is skipped")
            return None
        head = decode_head(text)
        if head is None:
            self._report(start, "a frame with an invalid head: it is skipped")
            return None
        begin, after = Position(self.number, start), Position(self.number, end)
        return Frame(head, body, begin, after, hashlib.sha256(body).hexdigest())

    def _at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`, fewer at the end of the file; small reads also read
        ahead.
        """
        begin = offset - self._ahead_at
        if not 0 <= begin <= len(self._ahead) - size:
            if size > _AHEAD_BYTES:
                return os.pread(self._descriptor, size, offset)
            ahead = _AHEAD_BYTES
            if self._limit is not None:  # the bytes after it are still being written
                ahead = max(min(ahead, self._limit - offset), size)
            self._ahead = os.pread(self._descriptor, ahead, offset)
            self._ahead_at, begin = offset, 0
        return self._ahead[begin : begin + size]

    def _break(self, reason: str) -> None:
        self._is_broken = True
        self._report(self.offset if self._is_begun else 0, reason)

    def _report(self, offset: int, reason: str) -> None:
        self._on_damage(Damage(self.number, self._path, offset, reason, set_aside(self._path)))


def _log(damage: Damage) -> None:
    copy_path = damage.backup or "nowhere"
    _logger.warning(
        "%s is damaged at byte %d: %s; kept as %s",
        damage.path,
        damage.offset,
        damage.reason,
        copy_path,
    )
