"""Rename the header `grpc-encoding` of gRPC requests in a stream of HTTP/2 frames.

If gRPC's core does not support the encoding, it fails the call with INTERNAL while it parses the
headers, before any of our code runs, and it hides the encodings that it does support. Under another
name, the header reaches the application. The new name is as long as the old one, in plain text and
in Huffman code, so the header tables of client and server stay in sync: a later reference to the
table entry yields the new name.

The core refuses compressed messages if the request names no encoding. So the header `grpc-encoding:
gzip` is added to each request; because `grpc.per_message_decompression` is off, the core does not
decompress the messages.

The core also delivers a message whose first byte is neither 0 nor 1 as an empty message, which
would be acknowledged. Such a message is replaced by one that `bodies.receive` recognises. It is not
shorter: bytes that do not reach the core would remain in the client's count of the connection's
flow-control window, until all calls of the connection wait.

Sources: RFC 9113, 4.1 (frames), 5.2 (flow control), 6.1 (DATA), 6.2 and 6.10 (HEADERS,
CONTINUATION); RFC 7541, 6 (header fields); github.com/grpc/grpc, doc/PROTOCOL-HTTP2.md,
"Length-Prefixed-Message".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from ....errors import InputError

ENCODING: Final = "grpc_encoding"
"""The new name of the header."""

MALFORMED: Final = os.urandom(16)
"""The first bytes of the message that replaces a malformed one. They are random, so no client can
send them.
"""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME: Final = 9
_DATA, _HEADERS, _RST_STREAM, _CONTINUATION = 0x0, 0x1, 0x3, 0x9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x4, 0x8, 0x20
_LARGEST_FRAME: Final = 16_384
"""The largest payload of a frame, bytes; gRPC closes a connection that exceeds it."""
_MOST_STREAMS: Final = 4096
_PREFIX: Final = 5
"""The size of the flag and the length ahead of a message, bytes."""
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
        self._skip = len(PREFACE)
        """The number of bytes to pass without parsing: the preface, or the rest of a frame."""
        self._left = b""
        """The beginning of a frame or header block that is not complete yet."""
        self.has_headers = False
        """Whether a request has begun."""
        self._begun: dict[int, None] = {}
        """The streams of which no message has begun yet."""

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
            kind = data[at + 3]
            if kind == _HEADERS:
                self.has_headers = True
                frames = _block_frames(data, at)
                if frames is None:
                    break
                _add(self._begun, _stream(data, at))
                parts += (data[passed:at], *_rewritten(data, frames))
                passed = end = frames[-1][1]
            elif kind == _DATA:
                replacement = self._checked(data, at, end)
                if replacement is None:
                    break
                if replacement is not _SAME:
                    parts += (data[passed:at], replacement)
                    passed = end
            elif kind == _RST_STREAM:
                self._begun.pop(_stream(data, at), None)
            at = end
        self._skip = max(at - size, 0)
        self._left = data[at:]
        if not parts:
            return data if at >= size else data[:at]
        return b"".join((*parts, data[passed:at]))

    def _checked(self, data: bytes, at: int, end: int) -> bytes | None:
        """Return the bytes that replace the DATA frame from `at` to `end`; `_SAME` for no change.

        Returns None if more of the frame is needed.
        """
        stream = _stream(data, at)
        if stream not in self._begun:
            return _SAME
        start = at + _FRAME + (1 if data[at + 4] & _PADDED else 0)
        if start >= end:  # an empty frame
            return _SAME
        if start >= len(data):
            return None
        if data[start] <= 1 or end - at > _FRAME + _LARGEST_FRAME:
            del self._begun[stream]
            return _SAME
        if end > len(data):
            return None
        del self._begun[stream]
        return _malformed_message(stream, end - at - _FRAME)


_SAME: Final = b"same"


def _add(streams: dict[int, None], stream: int) -> None:
    """Add a stream; beyond the limit, the oldest is removed."""
    streams[stream] = None
    if len(streams) > _MOST_STREAMS:
        del streams[next(iter(streams))]


def _stream(data: bytes, at: int) -> int:
    """Return the stream of the frame at `at`."""
    return int.from_bytes(data[at + 5 : at + _FRAME], "big") & 0x7FFF_FFFF


def _malformed_message(stream: int, size: int) -> bytes:
    """Return a DATA frame of `size` bytes or a few more, which ends its stream.

    Its message begins with MALFORMED. The core counts and ignores further frames of the stream.
    """
    body = MALFORMED.ljust(size - _PREFIX, b"\0")
    head = (_PREFIX + len(body)).to_bytes(3, "big") + bytes((_DATA, _END_STREAM))
    return head + stream.to_bytes(4, "big") + b"\0" + len(body).to_bytes(4, "big") + body


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
