"""Decompression of Snappy, as a single block and in its framing format.

Sources: github.com/google/snappy, format_description.txt and framing_format.txt. Over HTTP, the
coding `snappy` means a block, but older OpenTelemetry Collectors and gRPC clients send frames under
that name. The first bytes distinguish them: a block that begins like a stream would contain a copy
from a position before its beginning, which is invalid.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import InputError

STREAM = b"\xff\x06\x00\x00sNaPpY"
"""The chunk with which a stream of frames begins."""

_HEADER = 4
_COMPRESSED, _UNCOMPRESSED, _FIRST_SKIPPABLE = 0x00, 0x01, 0x80
_CHECKSUM, _CONTENT = 4, 65536
_LARGEST_CHUNK = _CHECKSUM + 32 + _CONTENT + _CONTENT // 6
"""The largest chunk with 64 KiB of content, even if the content cannot be compressed."""
_MOST_CHUNKS = 100_000
_DAMAGED = "the snappy data is damaged, or something else"


class SnappyFrames:
    """A stream of chunks with up to 64 KiB of content each; streams may be concatenated."""

    remaining = 0

    def __init__(self) -> None:
        self._left = b""
        """The beginning of an incomplete chunk."""
        self._skipped = 0
        """The number of bytes of a skippable chunk that have not been received yet."""
        self._chunks = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of the next bytes. Raises InputError if they are damaged."""
        data = self._left + data
        at = 0
        while True:
            step = min(self._skipped, len(data) - at)
            at, self._skipped = at + step, self._skipped - step
            if self._skipped or len(data) - at < _HEADER:
                break
            kind = data[at]
            end = at + _HEADER + int.from_bytes(data[at + 1 : at + _HEADER], "little")
            if kind >= _FIRST_SKIPPABLE and kind != STREAM[0]:
                self._count()
                at, self._skipped = at + _HEADER, end - at - _HEADER
                continue
            if end - at > _LARGEST_CHUNK:
                raise InputError(_DAMAGED)
            if end > len(data):
                break
            if out := self._chunk(kind, data[at:end]):
                yield out
            at = end
        self._left = data[at:]

    def finish(self) -> bytes:
        """Return the rest of the content. Raises InputError if the body is truncated."""
        if self._left or self._skipped or not self._chunks:
            raise InputError("the snappy data is cut off")
        return b""

    def _chunk(self, kind: int, chunk: bytes) -> bytes:
        self._count()
        if kind == STREAM[0] or self._chunks == 1:
            if chunk != STREAM:
                raise InputError(_DAMAGED)
            return b""
        if kind not in (_COMPRESSED, _UNCOMPRESSED):
            raise InputError(_DAMAGED)
        import cramjam  # noqa: PLC0415 - few clients use it

        # The library verifies the checksum and the maximum size of the content.
        try:
            return bytes(cramjam.snappy.decompress(STREAM + chunk))
        except cramjam.DecompressionError:
            raise InputError(_DAMAGED) from None

    def _count(self) -> None:
        if self._chunks == _MOST_CHUNKS:
            raise InputError(f"the snappy data is in more than {_MOST_CHUNKS} chunks")
        self._chunks += 1


class _Block:
    """One block, which is decompressed when it is complete."""

    def __init__(self) -> None:
        self._parts = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of the next bytes. Raises InputError if they are damaged."""
        self._parts += data
        return iter(())

    @property
    def remaining(self) -> int:
        """The number of bytes that `finish` will return. Raises InputError for a damaged body."""
        import cramjam  # noqa: PLC0415

        try:
            return int(cramjam.snappy.decompress_raw_len(bytes(self._parts[:5])))
        except cramjam.DecompressionError:
            raise InputError(_DAMAGED) from None

    def finish(self) -> bytes:
        """Return the rest of the content. Raises InputError if the body is truncated."""
        import cramjam  # noqa: PLC0415

        try:
            return bytes(cramjam.snappy.decompress_raw(self._parts))
        except cramjam.DecompressionError:
            raise InputError(_DAMAGED) from None


class SnappyAny:
    """Decompresses a stream of frames if the body begins like one, otherwise a single block."""

    def __init__(self) -> None:
        self._start = b""
        self._codec: SnappyFrames | _Block | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of the next bytes. Raises InputError if they are damaged."""
        if self._codec is None:
            data = self._start = self._start + data
            if len(data) < len(STREAM) and STREAM.startswith(data):
                return
            self._codec = SnappyFrames() if data.startswith(STREAM) else _Block()
        yield from self._codec.feed(data)

    @property
    def remaining(self) -> int:
        """The number of bytes that `finish` will return. Raises InputError for a damaged body."""
        return 0 if self._codec is None else self._codec.remaining

    def finish(self) -> bytes:
        """Return the rest of the content. Raises InputError if the body is truncated."""
        if self._codec is None:
            raise InputError("the snappy data is cut off")
        return self._codec.finish()
