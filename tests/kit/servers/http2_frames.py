"""HTTP/2 as a client writes it, byte by byte (RFC 9113, RFC 7541)."""

from __future__ import annotations

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x4, 0x8, 0x20

HUFFMAN = {
    "grpc-encoding": bytes.fromhex("9acac8b16a21e435537f"),
    "grpc_encoding": bytes.fromhex("9acac9116a21e435537f"),
}


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def data_frame(stream: int, content: bytes, *, is_last: bool = False) -> bytes:
    return frame(0x0, _END_STREAM if is_last else 0, stream, content)


def indexed(index: int) -> bytes:
    """A field of the static table."""
    return bytes([0x80 | index])


def text(value: str) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


def literal(name: str, value: str, kind: int = 0x40) -> bytes:
    """A field with its name; `kind` 0x40 adds it to the table."""
    return bytes([kind]) + text(name) + text(value)


def literal_value(index: int, value: str) -> bytes:
    """A field with a name of the table, added to it."""
    assert index < 63
    return bytes([0x40 | index]) + text(value)


def headers_frames(
    stream: int,
    block: bytes,
    cuts: list[int] | None = None,
    padding: int | None = None,
    *,
    is_prior: bool = False,
    added: bytes = b"",
) -> bytes:
    """A header block as a HEADERS frame, and a CONTINUATION for each cut; `added` is at its end."""
    at = sorted(cuts or [])
    parts = [block[start:end] for start, end in zip([0, *at], [*at, len(block)], strict=True)]
    parts[-1] += added
    first, *others = parts
    flags = 0
    if is_prior:
        first, flags = b"\0\0\0\0\x10" + first, flags | _PRIORITY
    if padding is not None:
        first, flags = bytes([padding]) + first + bytes(padding), flags | _PADDED
    found = frame(0x1, flags | (0 if others else _END_HEADERS), stream, first)
    for number, part in enumerate(others, 1):
        is_last = number == len(others)
        found += frame(0x9, _END_HEADERS if is_last else 0, stream, part)
    return found
