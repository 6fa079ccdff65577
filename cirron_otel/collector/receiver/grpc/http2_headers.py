"""Rename the header `grpc-encoding` of gRPC requests in a stream of HTTP/2 frames.

If gRPC's core does not support the encoding, it fails the call with INTERNAL while it parses the
headers, before any of our code runs, and it hides the encodings that it does support. Under another
name, the header reaches the application. The new name is as long as the old one, in plain text and
in Huffman code, so the header tables of client and server stay in sync: a later reference to the
table entry yields the new name.

The core refuses compressed messages if the request names no encoding. So the header `grpc-encoding:
gzip` is added to each request; because `grpc.per_message_decompression` is off, the core does not
decompress the messages.

Sources: RFC 9113, 4.1 (frames), 6.2 and 6.10 (HEADERS, CONTINUATION); RFC 7541, 6 (header fields).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ....errors import InputError

ENCODING: Final = "grpc_encoding"
"""The new name of the header."""

_PREFACE: Final = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_FRAME: Final = 9
_HEADERS, _CONTINUATION = 0x1, 0x9
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20
_PRIORITY_BYTES = 5
_LARGEST_BLOCK: Final = 16_000
"""The largest header block, bytes. With the added header, the frame stays below 16,384 bytes, a
size that all servers accept; gRPC refuses more than 16 KiB of headers in a request anyway."""

# A field that is not added to the table, with its name and value as plain text.
_ADDED: Final = b"\x00\x0dgrpc-encoding\x04gzip"

# The names in plain text, and in the Huffman code of RFC 7541, B: `-` and `_` have six bits each.
_PLAIN: Final = (b"grpc-encoding", b"grpc_encoding")
_HUFFMAN: Final = (
    bytes.fromhex("9acac8b16a21e435537f"),
    bytes.fromhex("9acac9116a21e435537f"),
)


class EncodingRenamer:
    """Renames the header in the data that a client sends over one connection."""

    def __init__(self) -> None:
        self._skip = _PREFACE
        """The number of bytes to pass without parsing: the preface, or the rest of a frame."""
        self._left = b""
        """The beginning of a frame or header block that is not complete yet."""
        self.has_headers = False
        """Whether a request has begun."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that can be forwarded; the rest is kept until its frame is complete.

        Raises InputError if a header block is too large, malformed, or interrupted.
        """
        if self._left:
            data, self._left = self._left + data, b""
        at, size = self._skip, len(data)
        parts: list[bytes] = []
        passed = 0
        while at + _FRAME <= size:
            end = at + _FRAME + _length(data, at)
            if data[at + 3] == _HEADERS:
                self.has_headers = True
                frames = _block_frames(data, at)
                if frames is None:
                    break
                parts += (data[passed:at], *_rewritten(data, frames))
                passed = end = frames[-1][1]
            at = end
        self._skip = max(at - size, 0)
        self._left = data[at:]
        if not parts:
            return data if at >= size else data[:at]
        return b"".join((*parts, data[passed:at]))


def _length(data: bytes, at: int) -> int:
    return data[at] << 16 | data[at + 1] << 8 | data[at + 2]


def _block_frames(data: bytes, at: int) -> list[tuple[int, int]] | None:
    """Return the start and end of each frame of a header block; None if the block is incomplete."""
    frames: list[tuple[int, int]] = []
    begin = at
    while at + _FRAME <= len(data):
        end = at + _FRAME + _length(data, at)
        if end - begin > _LARGEST_BLOCK:
            raise InputError("the headers of a request are too large")
        if frames and data[at + 3] != _CONTINUATION:
            raise InputError("the headers of a request are interrupted")
        if end > len(data):
            return None
        frames.append((at, end))
        if data[at + 4] & _END_HEADERS:
            return frames
        at = end
    return None


def _rewritten(data: bytes, frames: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the frames of a header block, with one header renamed and one added."""
    inner = [_fragment(data, *frame) for frame in frames]
    block = renamed(b"".join(data[start:stop] for start, stop in inner))
    at = 0
    for (begin, end), (start, stop) in zip(frames, inner, strict=True):
        is_last = end == frames[-1][1]
        added = _ADDED if is_last else b""
        yield (end - begin - _FRAME + len(added)).to_bytes(3, "big")
        yield data[begin + 3 : start]
        yield block[at : at + stop - start]
        yield added
        yield data[stop:end]
        at += stop - start


def _fragment(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Return the start and end of a frame's fragment of the header block."""
    start, stop = begin + _FRAME, end
    if data[begin + 3] == _HEADERS:
        flags = data[begin + 4]
        if flags & _PADDED and start < end:
            stop -= data[start]
            start += 1
        if flags & _PRIORITY:
            start += _PRIORITY_BYTES
    if start > stop:
        raise InputError("a frame of headers is malformed")
    return start, stop


def renamed(block: bytes) -> bytes:
    """Return a complete header block with the header renamed; a malformed one is returned
    unchanged.
    """
    if _PLAIN[0] not in block and _HUFFMAN[0] not in block:
        return block
    changed = bytearray(block)
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:  # an indexed field
                _, at = _integer(block, at, 0x7F)
            elif first & 0xE0 == 0x20:  # a table size update
                _, at = _integer(block, at, 0x1F)
            else:
                index, at = _integer(block, at, 0x3F if first & 0x40 else 0x0F)
                if not index:
                    old, new = _HUFFMAN if block[at] & 0x80 else _PLAIN
                    length, at = _integer(block, at, 0x7F)
                    if block[at : at + length] == old:
                        changed[at : at + length] = new
                    at += length
                length, at = _integer(block, at, 0x7F)
                at += length
    except (IndexError, InputError):
        return block
    return bytes(changed)


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return the integer at `at` (encoded as in RFC 7541, 5.1), and the position after it."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in (0, 7, 14, 21):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise InputError("an integer that is too large")
