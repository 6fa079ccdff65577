"""Decompression of bodies in small steps, so that the output never exceeds the limit by much.

Concatenated gzip members (RFC 1952), zstd frames (RFC 8878) and LZ4 frames count as one body. A
Snappy block is the exception: it is decompressed in one step, but its length is known beforehand.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import zstandard

from ...errors import InputError
from .consumer import Reason, RefusalError
from .snappy import SnappyAny, SnappyFrames

if TYPE_CHECKING:
    from zlib import _Decompress

STEP = 256 * 1024
"""The largest output of one step for gzip, deflate and lz4, bytes."""

_ZSTD_STEP = 256
"""The number of compressed bytes passed to zstd at a time. A block of 4 bytes may expand to 128
KiB, and the library does not limit its output: this value limits a step to 8 MiB."""

_ZSTD_MAX_WINDOW = 32 * 1024 * 1024
"""The largest window of Go's zstd encoder, which the OpenTelemetry Collector uses; the `zstd` tool
uses 8 MiB."""

_AT_ONCE = 1024 * 1024
"""The largest size that `finished` decompresses in the event loop, bytes."""

_MOST_MEMBERS = 10_000
"""The maximum number of members per body: even an empty member costs as much as a small body."""


class Inflater(Protocol):
    """Decompresses one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of the next bytes. Raises InputError if they are damaged."""

    @property
    def remaining(self) -> int:
        """The number of bytes that `finish` will return. Raises InputError for a damaged body."""

    def finish(self) -> bytes:
        """Return the rest of the content, which can be decompressed only once the body is complete.

        Raises InputError if the body is truncated.
        """


def too_large(limit: int) -> RefusalError:
    """Return the refusal of a body with more than `limit` bytes."""
    return RefusalError(
        Reason.TOO_LARGE,
        f"bodies of up to {limit} bytes, after decompression, are accepted: send less at once",
    )


async def finished(codec: Inflater, room: int, limit: int, hold: Callable[[int], None]) -> bytes:
    """Return the content that `codec` can decompress only now that the body is complete.

    At most `room` bytes are allowed, the unused part of `limit`. Before decompression, `hold` is
    called with the number of bytes. Raises RefusalError if there are more than `room`, InputError
    if the data is damaged, and the errors of `hold`.
    """
    size = codec.remaining
    if size > room:
        raise too_large(limit)
    if not size:
        return codec.finish()
    hold(size)
    return await asyncio.to_thread(codec.finish) if size > _AT_ONCE else codec.finish()


class _Stream:
    """A decompressor whose `feed` returns all content."""

    remaining = 0


class _Zlib(_Stream):
    """gzip (RFC 1952), possibly with several members, or zlib (RFC 1950), which HTTP calls
    `deflate`.
    """

    def __init__(self, name: str, window_bits: int, *, has_members: bool) -> None:
        self._name, self._window_bits, self._has_members = name, window_bits, has_members
        self._stream: _Decompress | None = None
        self._members = 0
        self._is_done = False
        """Whether a member has ended, so that the body may end too."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream is None:
                if self._is_done and not self._has_members:
                    raise InputError(f"there is unexpected data after the {self._name} data")
                self._members = _counted(self._members, self._name)
                self._stream, self._is_done = zlib.decompressobj(self._window_bits), False
            try:
                out = self._stream.decompress(data, STEP)
            except zlib.error:
                raise InputError(f"the {self._name} data is damaged, or something else") from None
            if out:
                yield out
            if self._stream.eof:
                data, self._stream, self._is_done = self._stream.unused_data, None, True
            else:
                data = self._stream.unconsumed_tail

    def finish(self) -> bytes:
        if not self._is_done:
            raise InputError(f"the {self._name} data is cut off")
        return b""


class _Lz4(_Stream):
    """LZ4 frames (github.com/lz4/lz4, doc/lz4_Frame_format.md)."""

    def __init__(self) -> None:
        import lz4.frame  # noqa: PLC0415 - few clients use it

        self._new = lz4.frame.LZ4FrameDecompressor
        self._frame: Any = None
        self._frames = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._frame is None:
                self._frames = _counted(self._frames, "lz4")
                self._frame = self._new()
            frame = self._frame
            while True:
                try:
                    out = frame.decompress(data, max_length=STEP)
                except RuntimeError:
                    raise InputError("the lz4 data is damaged, or something else") from None
                if out:
                    yield out
                data = b""
                if frame.eof or frame.needs_input:
                    break
            if frame.eof:
                data, self._frame = frame.unused_data or b"", None

    def finish(self) -> bytes:
        if self._frame is not None or not self._frames:
            raise InputError("the lz4 data is cut off")
        return b""


class _Zstd(_Stream):
    """zstd frames (RFC 8878)."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._frames = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_STEP):
            rest = data[start : start + _ZSTD_STEP]
            while rest:
                if self._frame is None:
                    self._frames = _counted(self._frames, "zstd")
                    self._frame = self._decompressor.decompressobj()
                try:
                    out = self._frame.decompress(rest)
                except zstandard.ZstdError:
                    raise InputError("the zstd data is damaged, or something else") from None
                if out:
                    yield out
                rest = self._frame.unused_data if self._frame.eof else b""
                if self._frame.eof:
                    self._frame = None

    def finish(self) -> bytes:
        if self._frame is not None or not self._frames:
            raise InputError("the zstd data is cut off")
        return b""


def _counted(members: int, name: str) -> int:
    if members == _MOST_MEMBERS:
        raise InputError(f"the {name} data is in more than {_MOST_MEMBERS} members")
    return members + 1


CODINGS = ("gzip", "zstd", "deflate", "snappy", "x-snappy-framed", "lz4")


def inflater(coding: str) -> Inflater | None:
    """Return a decompressor for a content coding in CODINGS; None for any other coding."""
    match coding:
        case "gzip" | "x-gzip":
            return _Zlib("gzip", 31, has_members=True)
        case "deflate" | "zlib":
            return _Zlib("deflate", 15, has_members=False)
        case "zstd":
            return _Zstd()
        case "snappy" | "x-snappy-framed":
            return SnappyAny() if coding == "snappy" else SnappyFrames()
        case "lz4":
            return _Lz4()
        case _:
            return None
