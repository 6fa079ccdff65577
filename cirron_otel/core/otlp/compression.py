"""gzip and zstd as streams of chunks, in bounded memory, with detection of truncation.

Concatenated gzip members and zstd frames are read as one stream, as RFC 1952 and RFC 8878 specify.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, Protocol

import zstandard

from ...errors import InputError
from .formats import Compression

if TYPE_CHECKING:
    from zlib import _Decompress

CHUNK = 256 * 1024
"""Bytes requested from a stream at once, and the maximum that gzip inflates in one step."""

_ZSTD_STEP = 1024
"""Compressed bytes given to zstd at once. A block of 4 bytes may expand to 128 KiB, and the library
does not limit its output: this step size keeps the output of one step under 32 MiB."""

_ZSTD_MAX_WINDOW = 128 * 1024 * 1024
"""The largest window (`zstd --long=27`) that a frame may request, in bytes."""

_CUT_OFF = "the {} data is cut off: get a complete copy of the file"

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")


def chunks(stream: BinaryIO, compression: Compression) -> Iterator[bytes]:
    """Yield the decompressed content of `stream`, in pieces that are never empty.

    Raises InputError if the stream is not in the format of `compression`, is truncated or damaged,
    or cannot be read. If it is truncated, everything that can be decompressed is yielded before the
    error is raised.
    """
    pieces = _read(stream)
    if compression is Compression.NONE:
        return pieces
    inflate = _gunzip if compression is Compression.GZIP else _unzstd
    return inflate(_checked(pieces, compression))


def with_head(pieces: Iterator[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """Return the first bytes of a stream, and an iterator over the complete stream.

    The first bytes are at least `size` bytes, unless the stream is shorter.
    """
    head = b""
    try:
        for piece in pieces:
            head += piece
            if len(head) >= size:
                break
    except InputError as error:
        pieces = _fault(error)  # raised again when the pieces after the head are read
    return head, itertools.chain((head,) if head else (), pieces)


def _fault(error: InputError) -> Iterator[bytes]:
    yield from ()
    raise error


def compression_of_data(head: bytes) -> Compression:
    """Detect a stream's compression from the magic number in its first bytes."""
    if head.startswith(_GZIP_MAGIC):
        return Compression.GZIP
    if head.startswith(_ZSTD_MAGIC) or _ZSTD_SKIPPABLE.match(head):
        return Compression.ZSTD
    return Compression.NONE


def collector_hint(head: bytes) -> str:
    """Return a hint if `head` is a compressed file of the Collector's file exporter."""
    if head[4:8] != _ZSTD_MAGIC:
        return ""
    return (
        ": the Collector's file exporter compresses each message separately, with lengths of"
        " 4 bytes: remove `compression` from its configuration"
    )


def _read(stream: BinaryIO) -> Iterator[bytes]:
    # read1 returns the bytes that a pipe has; read would wait for a complete chunk.
    read = getattr(stream, "read1", stream.read)
    while True:
        try:
            piece = read(CHUNK)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}") from error
        if not piece:
            return
        yield piece


def _checked(pieces: Iterator[bytes], compression: Compression) -> Iterator[bytes]:
    head, pieces = with_head(pieces, 8)
    magic = _GZIP_MAGIC if compression is Compression.GZIP else _ZSTD_MAGIC
    if compression_of_data(head) is not compression and not magic.startswith(head):
        raise InputError(
            f"expected {compression} data, found the bytes {head[:4].hex(' ')}"
            + (collector_hint(head) or ": give the file the suffixes of its format")
        )
    yield from pieces


def _gunzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    member: _Decompress | None = None
    started = False
    for piece in pieces:
        data = piece
        while data:
            if member is None:
                if started:
                    data = data.lstrip(b"\0")  # zero padding after a member, as on tapes
                    if not data:
                        break
                member, started = zlib.decompressobj(wbits=31), True
            try:
                out = member.decompress(data, CHUNK)
            except zlib.error as error:
                raise InputError(f"not gzip, or damaged: {error}") from None
            if out:
                yield out
            if member.eof:
                data, member = member.unused_data, None
            else:
                data = member.unconsumed_tail
    if member is not None or not started:
        if member is not None and (out := member.flush()):
            yield out
        raise InputError(_CUT_OFF.format("gzip"))


def _unzstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    frame: zstandard.ZstdDecompressionObj | None = None
    started = False
    for piece in pieces:
        for start in range(0, len(piece), _ZSTD_STEP):
            data = piece[start : start + _ZSTD_STEP]
            while data:
                if frame is None:
                    frame, started = decompressor.decompressobj(), True
                try:
                    out = frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise InputError(f"not zstd, or damaged: {error}") from None
                if out:
                    yield out
                data = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame = None
    if frame is not None or not started:
        raise InputError(_CUT_OFF.format("zstd"))


class Sink(Protocol):
    """The destination of compressed bytes; closing it ends the compressed data."""

    def write(self, data: bytes, /) -> int:
        """Write all of `data`."""

    def close(self) -> None:
        """End the compressed data."""


def compressor(stream: BinaryIO, compression: Compression) -> Sink:
    """Return a sink that compresses into `stream` and leaves it open; for NONE, `stream` itself.

    The same input gives the same bytes: a gzip header contains neither file name nor time.
    """
    if compression is Compression.GZIP:
        return gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0)
    if compression is Compression.ZSTD:
        writer = zstandard.ZstdCompressor(level=3, write_checksum=True)
        return writer.stream_writer(stream, closefd=False)
    return stream
