"""The part of the protobuf wire format that framing and splitting OTLP bytes needs.

Source: protobuf.dev/programming-guides/encoding. This module depends on no message type.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import InputError

MAX_VARINT_BYTES = 10

VARINT, FIXED64, LEN, START_GROUP, END_GROUP, FIXED32 = range(6)

_MAX_GROUP_DEPTH = 100


def encode_varint(value: int) -> bytes:
    """Encode `value` (not negative) as a base-128 varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_size(value: int) -> int:
    """Return the size of `encode_varint(value)` in bytes."""
    return (value.bit_length() + 6) // 7 or 1


def decode_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the varint at `offset` and the offset after it; raises InputError if there is none."""
    result = shift = 0
    for position in range(offset, min(offset + MAX_VARINT_BYTES, len(data))):
        byte = data[position]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position + 1
        shift += 7
    raise InputError(f"not a protobuf message: invalid varint at byte {offset}")


def fields(
    data: bytes, offset: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield each field of the message `data[offset:end]`: (number, wire type, start, value, stop).

    `start` is the position of the tag and `stop` the end of the field, so that `data[start:stop]`
    is the complete field; `value` is the position of its value (for LEN, after the length). Raises
    InputError if the data is not a protobuf message.
    """
    if end is None:
        end = len(data)
    while offset < end:
        start = offset
        tag, offset = decode_varint(data, offset)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == LEN:
            length, value = decode_varint(data, offset)
            offset = value + length
        else:
            value = offset
            offset = _skip(data, number, wire_type, offset, 0)
        if offset > end or number == 0:
            raise InputError(f"not a protobuf message: the field at byte {start} is malformed")
        yield number, wire_type, start, value, offset


def _skip(data: bytes, number: int, wire_type: int, offset: int, depth: int) -> int:
    if wire_type == VARINT:
        return decode_varint(data, offset)[1]
    if wire_type == FIXED64:
        return offset + 8
    if wire_type == FIXED32:
        return offset + 4
    if wire_type == LEN:
        length, offset = decode_varint(data, offset)
        return offset + length
    if wire_type == START_GROUP and depth < _MAX_GROUP_DEPTH:
        while True:
            tag, offset = decode_varint(data, offset)
            if tag & 7 == END_GROUP:
                if tag >> 3 == number:
                    return offset
                break
            offset = _skip(data, tag >> 3, tag & 7, offset, depth + 1)
    raise InputError(f"not a protobuf message: wire type {wire_type} near byte {offset}")
