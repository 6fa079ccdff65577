"""Split chunks of a stream into lines or messages; limits are checked before allocation."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import InputError
from .wire import MAX_VARINT_BYTES


class StreamError(InputError):
    """The stream itself is broken: nothing after this position can be read."""


def lines(pieces: Iterator[bytes], max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number (from 1) and without its newline.

    None replaces a line longer than `max_bytes`; it is yielded as soon as that is certain, and the
    remaining bytes of the line are dropped as they arrive. An error of the stream is raised as
    StreamError with the current line number.
    """
    number, parts, size = 1, list[bytes](), 0
    try:
        for piece in pieces:
            start = 0
            while start < len(piece):
                end = piece.find(b"\n", start)
                stop = len(piece) if end < 0 else end
                fitted = size <= max_bytes
                size += stop - start
                if size <= max_bytes:
                    parts.append(piece[start:stop])
                elif fitted:
                    parts.clear()
                    yield number, None
                start = stop + 1
                if end >= 0:
                    if size <= max_bytes:
                        yield number, b"".join(parts)
                    number, size = number + 1, 0
                    parts.clear()
    except InputError as error:
        raise StreamError(f"line {number}: {error}") from None
    if parts:
        yield number, b"".join(parts)


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
