"""The timeline of a `diagnose` bundle, as records.

The file has columns: times in seconds since the epoch, and the bytes allocated and reserved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from .... import exactjson
from .exact import parse_record
from .pieces import Piece


def timeline_pieces(stream: BinaryIO, limit: int) -> Iterator[Piece]:
    """Yield a legacy record for each time of a timeline, as text that no file contains.

    The last piece has the file's own text, so that it can be written again.
    """
    text = stream.read(limit + 1)
    if len(text) > limit:
        yield Piece(0, b"", b"", len(text), "too-long")
        return
    data = parse_record(text).data
    values = [] if data is None else [data.get(name) for name in _COLUMNS]
    columns = [value for value in values if isinstance(value, list)]
    if len(columns) != len(_COLUMNS):
        yield Piece(
            0, text, b"", 0, "expected an object with the arrays timestamps, allocated, reserved"
        )
        return
    if len({len(column) for column in columns}) != 1:
        yield Piece(0, text, b"", 0, "the columns have different lengths")
        return
    index = 0
    for index, row in enumerate(zip(*columns, strict=True)):
        yield Piece(index, b"", exactjson.dumps(_record(*row)), 0)
    yield Piece(index + 1, text, b"", 0)


_COLUMNS = ("timestamps", "allocated", "reserved")


def _record(timestamp: Any, allocated: Any, reserved: Any) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "event_type": "sample",
        "allocator_allocated_bytes": _whole(allocated),
        "allocator_reserved_bytes": _whole(reserved),
    }


def _whole(number: Any) -> Any:
    """Return a count of bytes, which the timeline has as a float, as an integer if it is one."""
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number
