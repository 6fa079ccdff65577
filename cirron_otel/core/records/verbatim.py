"""Single records of a batch, as they were recorded, by their positions."""

from __future__ import annotations

from typing import Any

import msgspec

from ... import exactjson
from ...errors import InputError


class _Spans(msgspec.Struct):
    spans: list[msgspec.Raw] = []


class _Marks(msgspec.Struct):
    marks: list[msgspec.Raw] = []


def span_records(data: bytes) -> list[Any]:
    """Return the spans of a batch, unparsed if the batch is well-formed, to save time."""
    try:
        return msgspec.json.decode(data, type=_Spans).spans
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _tolerantly(data, "spans")


def mark_records(data: bytes) -> list[Any]:
    """Return the marks of a batch, unparsed if the batch is well-formed, to save time."""
    try:
        return msgspec.json.decode(data, type=_Marks).marks
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _tolerantly(data, "marks")


def record_at(records: list[Any], position: int) -> dict[str, Any] | None:
    """Return the record at a position of one of these lists; None if it is missing or invalid."""
    record = records[position] if position < len(records) else None
    if isinstance(record, msgspec.Raw):
        try:
            record = exactjson.loads(bytes(record))
        except InputError:
            return None
    return record if isinstance(record, dict) else None


def _tolerantly(data: bytes, key: str) -> list[Any]:
    try:
        batch = exactjson.loads(data)
    except InputError:
        return []
    records = batch.get(key) if isinstance(batch, dict) else None
    return records if isinstance(records, list) else []
