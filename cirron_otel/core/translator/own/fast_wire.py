"""Primitives for reading the wire format exactly as our encoder writes it."""

from __future__ import annotations

from struct import error as StructError  # noqa: N812

from google.protobuf.message import DecodeError

from ....errors import InputError
from ..typed import NotCanonicalError
from ..values import UnencodableError


class SuspectError(NotCanonicalError):
    """At least one of the ids or values that are checked together is not valid.

    If each of them is checked separately, only the invalid ones need the exact mapper.
    """


UNREADABLE = (
    InputError,
    NotCanonicalError,
    LookupError,
    StructError,
    UnicodeDecodeError,
    DecodeError,
    UnencodableError,
)
"""Every error that the fast path raises for input that only the exact path can read."""


def length_at(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at `at` and the position after it."""
    value = data[at]
    if value < 128:
        return value, at + 1
    high = data[at + 1]
    if 0 < high < 128:
        return value & 127 | high << 7, at + 2
    value &= 127
    shift = 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            if byte == 0:
                raise NotCanonicalError  # not the shortest form
            return value, at + 1
        shift += 7
        if shift > 63:
            raise NotCanonicalError


def field_at(data: bytes, at: int, tag: int) -> tuple[int, int]:
    """Return the start and end of the length-delimited field with this tag."""
    if at >= len(data) or data[at] != tag:
        raise NotCanonicalError
    size, start = length_at(data, at + 1)
    end = start + size
    if end > len(data):
        raise NotCanonicalError
    return start, end
