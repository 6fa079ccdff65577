"""The form in which TraceML's frames are stored in the intake journal: many frames to a group.

A group begins with the id of the receiving process (16 bytes) and contains records. A record is a
header (integers are unsigned and little-endian) and its content:

| header | bytes | |
|---|---|---|
| connection | 8 | the number of the connection, counted by the receiving process |
| kind | 1 | `FrameRecordKind` |
| offset | 8 | the position of the content among the bytes that the peer sent |
| size | 4 | the length of the content, bytes |

A frame that was dropped leaves a gap between the offsets of its neighbours.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from ...errors import InputError

PROCESS_BYTES: Final = 16
_HEADER = struct.Struct("<QBQI")
RECORD_BYTES: Final = _HEADER.size


class FrameRecordKind(IntEnum):
    """The kind of a record."""

    FRAME = 1
    """A frame, with its length."""
    END = 2
    """The end of a connection; the content is an incomplete frame that the peer had begun."""
    START = 3
    """The start of a receiving process: the connections of earlier processes have ended."""


_KINDS = frozenset(FrameRecordKind)


class GroupRecord(NamedTuple):
    """A record of a group."""

    connection: int
    kind: FrameRecordKind
    offset: int
    content: bytes

    @property
    def size(self) -> int:
        """The length of the record in a group, bytes."""
        return RECORD_BYTES + len(self.content)


def encode_group(process: bytes, records: Iterable[GroupRecord]) -> bytes:
    """Return the group of `records` that the receiving process with this id has read."""
    pieces = [process]
    for connection, kind, offset, content in records:
        pieces += (_HEADER.pack(connection, kind, offset, len(content)), content)
    return b"".join(pieces)


def decode_group(body: bytes) -> tuple[bytes, Iterator[GroupRecord]]:
    """Return the id of the receiving process, and the records.

    Raises InputError if `body` is not a group.
    """
    if len(body) < PROCESS_BYTES:
        raise InputError(
            f"a group of {len(body)} bytes: expected at least {PROCESS_BYTES}, the id of a process"
        )
    return body[:PROCESS_BYTES], _records(body)


def _records(body: bytes) -> Iterator[GroupRecord]:
    at = PROCESS_BYTES
    while at < len(body):
        begin = at + RECORD_BYTES
        if begin > len(body):
            raise InputError(f"a group of {len(body)} bytes ends within the record at {at}")
        connection, kind, offset, size = _HEADER.unpack_from(body, at)
        at = begin + size
        if at > len(body):
            raise InputError(f"a group of {len(body)} bytes ends within the record at {begin}")
        if kind not in _KINDS:
            raise InputError(f"a record of the unknown kind {kind}: written by a later version")
        yield GroupRecord(connection, FrameRecordKind(kind), offset, body[begin:at])
