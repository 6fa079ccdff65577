"""The number of records in a batch."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Records(NamedTuple):
    """The number of records of each kind."""

    span: int = 0
    mark: int = 0
    snapshot: int = 0


class _Lists(msgspec.Struct, gc=False):
    spans: list[msgspec.Raw] = []
    marks: list[msgspec.Raw] = []
    snapshots: list[msgspec.Raw] = []


_decoder = msgspec.json.Decoder(_Lists)


def records_of(data: bytes) -> Records:
    """Return the number of records in a batch; 0 of each kind for invalid data."""
    try:
        lists = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Records()
    return Records(len(lists.spans), len(lists.marks), len(lists.snapshots))
