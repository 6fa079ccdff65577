"""How many records a batch has."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Records(NamedTuple):
    """How many of each kind."""

    span: int = 0
    mark: int = 0
    snapshot: int = 0


class _Lists(msgspec.Struct, gc=False):
    spans: list[msgspec.Raw] = []
    marks: list[msgspec.Raw] = []
    snapshots: list[msgspec.Raw] = []


_decoder = msgspec.json.Decoder(_Lists)


def records_of(data: bytes) -> Records:
    """How many records are in a batch; none in what is no batch."""
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Records()
    return Records(len(found.spans), len(found.marks), len(found.snapshots))
