"""Split chunks of a stream into lines or messages; limits are checked before allocation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Self

from ...errors import InputError
from .wire import MAX_VARINT_BYTES

_INDENT = b" \t\n"
_NOT_INDENTED = re.compile(rb"\n[^ \t\n]")


class StreamError(InputError):
    """The stream itself is broken: nothing after this position can be read."""


class Lines:
    """The lines of a stream, with their numbers (from 1), and without their newlines.

    None replaces a line longer than `max_bytes`; it is yielded as soon as that is certain, and the
    remaining bytes of the line are dropped as they arrive. An error of the stream is raised as
    StreamError with the current line number.
    """

    def __init__(self, pieces: Iterator[bytes], max_bytes: int) -> None:
        """Read `pieces`, none of which is empty."""
        self._pieces, self._max_bytes = pieces, max_bytes
        self._piece, self._at = b"", 0
        self._number = 0
        """The number of lines before the position in the piece."""
        self._is_too_long = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, bytes | None]:
        self._drop_rest()
        parts, size = list[bytes](), 0
        while self._has_more():
            end = self._piece.find(b"\n", self._at)
            stop = len(self._piece) if end < 0 else end
            size += stop - self._at
            if size > self._max_bytes:
                self._is_too_long = True
                return self._number + 1, None
            parts.append(self._piece[self._at : stop])
            self._at = stop + 1
            if end >= 0:
                break
        if not parts:
            raise StopIteration
        self._number += 1
        return self._number, b"".join(parts)

    def indented(self, max_bytes: int) -> bytes | None:
        """Return the next lines that are empty or start with a space or a tab, with their newlines.

        Return None if they have more than `max_bytes` bytes. One search for the line after them is
        much faster than a look at each line.
        """
        self._drop_rest()
        parts, size, is_at_start = list[bytes](), 0, True
        while self._has_more():
            piece, start = self._piece, self._at
            if is_at_start and piece[start] not in _INDENT:
                break
            next_line = _NOT_INDENTED.search(piece, start)
            self._at = len(piece) if next_line is None else next_line.start() + 1
            parts.append(piece[start : self._at])
            size += self._at - start
            if size > max_bytes:
                return None
            self._number += parts[-1].count(b"\n")
            if next_line is not None:
                break
            is_at_start = piece.endswith(b"\n")
        return b"".join(parts)

    def _has_more(self) -> bool:
        """Return whether there is more text; it is at the position in the piece."""
        if self._at < len(self._piece):
            return True
        try:
            piece = next(self._pieces, None)
        except InputError as error:
            raise StreamError(f"line {self._number + 1}: {error}") from None
        self._piece, self._at = piece or b"", 0
        return piece is not None

    def _drop_rest(self) -> None:
        """Drop the remaining bytes of a line that is too long."""
        while self._is_too_long and self._has_more():
            end = self._piece.find(b"\n", self._at)
            self._at = len(self._piece) if end < 0 else end + 1
            if end >= 0:
                self._number += 1
                self._is_too_long = False


def messages(pieces: Iterator[bytes], max_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield each length-delimited message with its number (from 1) and the offset of its length.

    Raises StreamError with this number and offset if the stream ends within a message, has an
    error, or contains a length above `max_bytes`: the next length cannot be found after that.
    """
    source = _Source(pieces)
    number = 0
    while True:
        number, start = number + 1, source.offset
        try:
            length = source.varint()
            if length is None:
                return
            if length > max_bytes:
                raise InputError(f"its length is {length} bytes, over the limit of {max_bytes}")
            data = source.take(length)
            if len(data) < length:
                raise InputError(
                    f"its length is {length} bytes, {len(data)} are left: the file is cut off"
                )
        except InputError as error:
            raise StreamError(f"message {number} at byte {start}: {error}") from None
        yield number, start, data


class _Source:
    """Reads varints and byte strings of a given length from a stream of chunks."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._at = 0
        self.offset = 0
        """The number of bytes that have been read."""

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, or fewer at the end of the stream."""
        end = self._at + count
        if end <= len(self._piece):
            data = self._piece[self._at : end]
            self._at = end
            self.offset += count
            return data
        parts, size = [self._piece[self._at :]], len(self._piece) - self._at
        self._piece, self._at = b"", 0
        while size < count and (piece := next(self._pieces, None)) is not None:
            used = min(count - size, len(piece))
            parts.append(piece[:used])
            self._piece, self._at = piece, used
            size += used
        self.offset += size
        return b"".join(parts)

    def varint(self) -> int | None:
        """Return the next varint, or None at the end of the stream."""
        value = 0
        for index in range(MAX_VARINT_BYTES):
            byte = self.take(1)
            if not byte:
                if index == 0:
                    return None
                raise InputError("the file is cut off within a length")
            value |= (byte[0] & 0x7F) << (7 * index)
            if byte[0] < 0x80:
                return value
        raise InputError("its length is not a valid varint")
