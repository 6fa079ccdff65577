"""The layout of a trace: a header of 64 bytes, and records of 72 bytes, little-endian."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any, Final, NamedTuple

from ....errors import InputError

MAGIC: Final = b"DGRR"
VERSION: Final = 1
HEADER: Final = struct.Struct("<4sHHQQdIIQ16s")
RECORD: Final = struct.Struct("<Q7dII")
HEADER_CRC_BYTES: Final = 36
"""`header_crc32` is the CRC of the header's first bytes, this many."""
RECORD_CRC_BYTES: Final = 64
"""`record_crc32` is the CRC of the record's first bytes, this many."""
_RECORD_START: Final = struct.Struct("<Q7d")
_IDENTIFIED: Final = len(MAGIC) + 2
"""A file with these first bytes, the magic and the version, is a trace."""
U64_MAX: Final = 2**64 - 1


class TraceHeader(NamedTuple):
    """The header's fields, under the names of the page."""

    magic: bytes
    version: int
    pad0: int
    seed: int
    step_count: int
    learning_rate: float
    file_crc32: int
    header_crc32: int
    created_at: int
    """Seconds since the Unix epoch, unsigned."""
    reserved: bytes

    @classmethod
    def parse(cls, head: bytes) -> TraceHeader:
        """Return the header of a trace; the missing bytes of an incomplete one are zero."""
        return cls(*HEADER.unpack(head[: HEADER.size].ljust(HEADER.size, b"\0")))

    def pack(self) -> bytes:
        """Return the 64 bytes."""
        return HEADER.pack(*self)


class TraceRecord(NamedTuple):
    """The fields of a record, under the names of the page."""

    step_id: int
    w_before: float
    b_before: float
    grad_w: float
    grad_b: float
    w_after: float
    b_after: float
    loss: float
    record_crc32: int
    pad0: int

    @classmethod
    def parse(cls, data: bytes) -> TraceRecord:
        """Return the record in 72 bytes."""
        return cls(*RECORD.unpack(data))


HEADER_NAMES: Final = (
    "magic", "version", "_pad0", "seed", "step_count", "learning_rate", "file_crc32",
    "header_crc32", "created_at", "_reserved",
)  # fmt: skip
"""The names of the header's fields on the page, in order."""
RECORD_NAMES: Final = (*TraceRecord._fields[:9], "_pad0")
"""The names of a record's fields on the page, in order."""
_HEADER_ENDS: Final = (4, 6, 8, 16, 24, 32, 36, 40, 48, 64)


class TraceFinding(NamedTuple):
    """A check that failed, or a note."""

    check: str
    """The name of the field that the check is about."""
    record: int | None
    """The position of the record, from 0; None if the check is about the header."""
    message: str
    is_note: bool = False


def incomplete_field(head: bytes) -> str | None:
    """Return the first field that is missing in a header of fewer than 64 bytes."""
    for name, end in zip(HEADER_NAMES, _HEADER_ENDS, strict=True):
        if len(head) < end:
            return name
    return None


def complete_fields(head: bytes) -> dict[str, Any]:
    """Return the fields of a header that are complete, by their names on the page."""
    values = zip(HEADER_NAMES, _HEADER_ENDS, TraceHeader.parse(head), strict=True)
    return {name: value for name, end, value in values if end <= len(head)}


def identify(head: bytes) -> TraceFinding | None:
    """Return why a file is not a trace of version 1, judged by its first bytes; None if it is."""
    if not head:
        return TraceFinding("magic", None, "the file is empty: expected a trace, which begins DGRR")
    if head[: len(MAGIC)] != MAGIC:
        shown = head[: len(MAGIC)].hex(" ")
        return TraceFinding("magic", None, f"the file begins with {shown}: expected DGRR")
    if len(head) < _IDENTIFIED:
        return TraceFinding("version", None, f"the file ends after {len(head)} bytes: expected 64")
    version = int.from_bytes(head[4:_IDENTIFIED], "little")
    if version == VERSION:
        return None
    hint = ""
    if head[4:_IDENTIFIED] == VERSION.to_bytes(2, "big"):
        hint = " and little-endian fields; these are big-endian"
    return TraceFinding("version", None, f"the version is {version}: expected 1{hint}")


def require_trace(path: str, head: bytes) -> None:
    """Raise InputError if a file is not a trace of version 1."""
    problem = identify(head)
    if problem is not None:
        raise InputError(f"{path} is not a DGRR trace: {problem.message}")


def require_header(path: str, head: bytes) -> None:
    """Raise InputError if a file is not a trace of version 1, or ends in its header."""
    require_trace(path, head)
    field = incomplete_field(head)
    if field is not None:
        raise InputError(
            f"{path} is not a complete DGRR trace: it ends in the header, in {field}, after"
            f" {len(head)} bytes: expected 64"
        )


def record_bytes(
    step_id: int,
    before: tuple[float, float],
    gradients: tuple[float, float],
    after: tuple[float, float],
    loss: float,
) -> bytes:
    """Return a record with its CRC; each pair is of the weight and the bias."""
    start = _RECORD_START.pack(step_id, *before, *gradients, *after, loss)
    return start + zlib.crc32(start).to_bytes(4, "little") + b"\0\0\0\0"


def header_bytes(header: TraceHeader, file_crc32: int) -> bytes:
    """Return a header with this CRC of the file, and its own CRC."""
    data = header._replace(file_crc32=file_crc32).pack()
    crc = zlib.crc32(data[:HEADER_CRC_BYTES])
    return header._replace(file_crc32=file_crc32, header_crc32=crc).pack()


def bits_of(number: float) -> str:
    """Return the bits of a double as 16 hexadecimal digits, the sign first."""
    return struct.pack(">d", number).hex()


def json_number(number: float) -> float | str:
    """Return a double as a JSON value: `nan`, `inf` or `-inf` as a text."""
    return number if math.isfinite(number) else str(number)
