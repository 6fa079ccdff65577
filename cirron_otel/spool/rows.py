"""What an index keeps of a batch: plain rows, from well-formed and from odd records alike."""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from .. import exactjson
from ..errors import InputError

_ERROR = 2
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
MAX_TEXT = 500
"""Longer names and values are cut: rows are for showing, never for converting."""


class SpanRow(Struct):
    """The fields of a span that the index keeps; `mark_ids` are its list."""

    id: str | None = None
    parent_id: str | None = None
    name: str | None = None
    index: Any = None
    start_ns: int | None = None
    end_ns: int | None = None
    pid: int | None = None
    rank: int | None = None
    thread_id: int | None = None
    gpu_ns: int | None = None
    mark_ids: list[str] = []
    otel: Any = None

    @property
    def error(self) -> str | None:
        """What the span's status says where it is an error."""
        status = self.otel.get("status") if isinstance(self.otel, dict) else None
        if not isinstance(status, dict) or status.get("code") != _ERROR:
            return None
        message = status.get("message")
        return message if isinstance(message, str) and message else "error"


class MarkRow(Struct):
    """The fields of a mark that the index keeps."""

    id: str | None = None
    span_id: str | None = None
    name: str | None = None
    value: Any = None
    value_nonfinite: str | None = None
    kind: str | None = None
    ts_ns: int | None = None


class SnapshotRow(Struct):
    """The fields of a snapshot that the index keeps."""

    id: str | None = None
    span_id: str | None = None
    tensor_name: str | None = None
    blob_uri: str | None = None


class BatchRows(Struct):
    """The rows of one batch."""

    sdk_version: str | None = None
    batch_id: str | None = None
    spans: list[SpanRow] = []
    marks: list[MarkRow] = []
    snapshots: list[SnapshotRow] = []


_decoder = msgspec.json.Decoder(BatchRows)


_TEXTS = frozenset({"id", "parent_id", "span_id", "kind", "value_nonfinite", "blob_uri"})
_SHOWN = frozenset({"name", "tensor_name"})
_INTEGERS = frozenset({"start_ns", "end_ns", "ts_ns", "pid", "rank", "thread_id", "gpu_ns"})
_Row = TypeVar("_Row", SpanRow, MarkRow, SnapshotRow)


def rows_of(data: bytes) -> BatchRows:
    """The rows of a batch. What has another type than it should have is None, or shown as JSON."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        batch = exactjson.loads(data)
    except InputError:
        return BatchRows()
    if not isinstance(batch, dict):
        return BatchRows()
    rows = BatchRows(sdk_version=_text(batch, "sdk_version"), batch_id=_text(batch, "batch_id"))
    rows.spans.extend(_row(SpanRow, span) for span in _objects(batch, "spans"))
    rows.marks.extend(_row(MarkRow, mark) for mark in _objects(batch, "marks"))
    rows.snapshots.extend(_row(SnapshotRow, each) for each in _objects(batch, "snapshots"))
    return rows


def shown(value: Any) -> str | None:
    """A value as text for people: at most 500 characters, always valid UTF-8."""
    if value is None or (isinstance(value, str) and value.isascii() and len(value) <= MAX_TEXT):
        return value
    text = value if isinstance(value, str) else exactjson.dumps_ascii(value)
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode("utf-8")


def number_of(value: str | None) -> float | None:
    """The finite number that a shown value is, as JSON writes numbers; None where it is none."""
    if value is None or not _NUMBER.fullmatch(value):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _objects(batch: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The records in a list of a batch; one that is no object counts as an empty one."""
    records = batch.get(key)
    if not isinstance(records, list):
        return []
    return [record if isinstance(record, dict) else {} for record in records]


def _text(batch: dict[str, Any], key: str) -> str | None:
    value = batch.get(key)
    return value if isinstance(value, str) else None


def _row(kind: type[_Row], record: dict[str, Any]) -> _Row:
    """A row of a record of any shape."""
    row = kind()
    for name in kind.__struct_fields__:
        value = record.get(name)
        if name in _SHOWN:
            value = shown(value)
        elif name in _TEXTS:
            value = value if isinstance(value, str) else None
        elif name in _INTEGERS:
            value = value if type(value) is int else None
        elif name == "mark_ids":
            value = [each for each in value if isinstance(each, str)] if type(value) is list else []
        setattr(row, name, value)
    return row
