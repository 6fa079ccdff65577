"""Repair strings that a backend truncated within a character; protobuf parsers reject them."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from ...core.otlp.wire import LEN, encode_varint, fields


def repair_utf8(data: bytes, kind: Descriptor | None) -> bytes:
    """Return the message with invalid UTF-8 removed from its strings.

    Raises InputError if `data` is not a message.
    """
    out = bytearray()
    by_number = kind.fields_by_number if kind is not None else {}
    for number, wire_type, start, value, stop in fields(data):
        field = by_number.get(number)
        if field is None or wire_type != LEN:
            out += data[start:stop]
            continue
        piece = data[value:stop]
        if field.message_type is not None:
            piece = repair_utf8(piece, field.message_type)
        elif field.type == FieldDescriptor.TYPE_STRING:
            piece = piece.decode("utf-8", "ignore").encode()
        out += encode_varint(number << 3 | LEN) + encode_varint(len(piece)) + piece
    return bytes(out)
