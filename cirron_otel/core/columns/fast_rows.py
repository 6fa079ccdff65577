"""The rows of a batch as recording programs write it, without a difference to compute.

The typed batch encodes to the bytes of the file, which proves that no field is unknown. A record
with a value that its columns do not store exactly takes the path of `records`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw

from ... import exactjson
from ...errors import InputError
from ...exactjson import MAX_DEPTH
from ..translator.typed import (
    NotCanonicalError,
    TypedBatch,
    TypedMark,
    TypedSnapshot,
    TypedSpan,
    decode,
    encode,
)
from .attributes import entries_of_text
from .records import (
    NONFINITE,
    STATISTICS,
    VALUE_COLUMNS,
    Row,
    int64s,
    mark_ids_of,
    mark_row,
    snapshot_row,
    span_row,
    statistics_of,
    status_of,
)
from .schema import MARKS, SNAPSHOTS, SPANS, ColumnValues

_MAX_64 = 1 << 63
_MAX_DEPTH = MAX_DEPTH - 3
"""The deepest nesting of a field: the batch, its list and the record are three levels."""
_ODD = object()
"""A value that no column stores exactly."""
_NULL = Raw(b"null")
_NO_STATUS = (None, None)
_SPAN_TEXTS = ("id", "name", "parent_id")
_SPAN_NUMBERS = (
    "index", "start_ns", "end_ns", "cpu_ns", "gpu_ns", "memory_peak_bytes", "thread_id", "pid",
    "rank",
)  # fmt: skip
_MARK_TEXTS = ("id", "span_id", "name", "value_type", "kind")
_MARK_NUMBERS = ("ts_ns",)
_SNAPSHOT_TEXTS = ("id", "span_id", "tensor_name", "dtype", "mode", "blob_uri")
_SNAPSHOT_NUMBERS = ("ts_ns",)
_VALUE_COLUMNS = {column: kind for kind, column in VALUE_COLUMNS.items()}
_STATISTICS_COLUMNS = (*STATISTICS, "histogram_bins", "histogram_counts", "stats")
_string_decoder = msgspec.json.Decoder(str)


class FastRows(NamedTuple):
    """The rows of a batch without the columns that describe the batch."""

    header: Row
    """The columns of the batch's own fields."""
    otel: Any
    """The batch's `otel`, a value of `exactjson.loads`; None if it has none."""
    tables: dict[str, ColumnValues]


def fast_rows(data: bytes) -> FastRows:
    """Return the rows of a batch. Raises NotCanonicalError if only `records` can read it."""
    batch = decode(data)
    try:
        tables = {SNAPSHOTS: _snapshots(batch.snapshots), MARKS: _marks(batch.marks)}
        ids = mark_ids_of(tables[MARKS]["span_id"], tables[MARKS]["id"])
        tables[SPANS] = _spans(batch.spans, ids)
        otel = None
        if batch.otel is not UNSET:
            otel = exactjson.loads(bytes(batch.otel), max_depth=MAX_DEPTH - 1)
    except InputError:  # a part is nested too deep
        raise NotCanonicalError from None
    return FastRows(_header(batch), otel, tables)


def _header(batch: TypedBatch) -> Row:
    numbers = (batch.schema_version, batch.created_ns)
    if not all(-_MAX_64 <= each < _MAX_64 for each in numbers):
        raise NotCanonicalError
    return {
        "schema_version": batch.schema_version,
        "sdk_version": batch.sdk_version,
        "batch_id": batch.batch_id,
        "created_ns": batch.created_ns,
        "otel": _text(batch.otel),
        "extra": None,
    }


# --- records -----------------------------------------------------------------------------------


def _spans(spans: list[TypedSpan], ids: dict[str, list[str]]) -> ColumnValues:
    columns = _plain(spans, _SPAN_TEXTS, _SPAN_NUMBERS)
    statuses = [_status(bytes(s.otel)) if isinstance(s.otel, Raw) else _NO_STATUS for s in spans]
    columns |= {
        "otel": [_text(span.otel) for span in spans],
        "mark_ids": [
            None if not span.mark_ids and span.id not in ids else _listed(span, ids)
            for span in spans
        ],
        "status_code": [status[0] for status in statuses],
        "status_message": [status[1] for status in statuses],
    }
    _replace_odd(columns, spans, lambda record: span_row(record, ids))
    return columns


def _listed(span: TypedSpan, ids: dict[str, list[str]]) -> list[str] | None:
    listed = list(span.mark_ids)
    return None if listed == ids.get(span.id, []) else listed


def _marks(marks: list[TypedMark]) -> ColumnValues:
    columns = _plain(marks, _MARK_TEXTS, _MARK_NUMBERS)
    values = [
        _value(mark.value_type, bytes(mark.value))
        if mark.value_nonfinite is UNSET
        else _nonfinite(mark)
        for mark in marks
    ]
    for column, kind in _VALUE_COLUMNS.items():
        columns[column] = [
            value if mark.value_type == kind and value is not _ODD else None
            for mark, value in zip(marks, values, strict=True)
        ]
    columns["value_nonfinite"] = [
        None if mark.value_nonfinite is UNSET else mark.value_nonfinite for mark in marks
    ]
    odd = [number for number, value in enumerate(values) if value is _ODD]
    _replace_odd(columns, marks, mark_row, odd)
    return columns


def _snapshots(snapshots: list[TypedSnapshot]) -> ColumnValues:
    columns = _plain(snapshots, _SNAPSHOT_TEXTS, _SNAPSHOT_NUMBERS)
    shapes = [_shape(bytes(snapshot.shape)) for snapshot in snapshots]
    statistics = [_statistics(bytes(snapshot.stats)) for snapshot in snapshots]
    columns["shape"] = shapes
    for name in _STATISTICS_COLUMNS:
        columns[name] = [row[name] for row in statistics]
    odd = [number for number, shape in enumerate(shapes) if shape is None]
    _replace_odd(columns, snapshots, snapshot_row, odd)
    return columns


def _plain(records: list[Any], texts: tuple[str, ...], numbers: tuple[str, ...]) -> ColumnValues:
    """Return the columns that every kind of record has, and those that fields fill unchanged."""
    columns = {name: list(map(attrgetter(name), records)) for name in (*texts, *numbers)}
    columns["attributes"] = [entries_of_text(bytes(record.attrs)) for record in records]
    columns["otel"] = [None] * len(records)
    columns["extra"] = [None] * len(records)
    for name in numbers:
        values = [value for value in columns[name] if value is not None]
        if values and not (min(values) >= -_MAX_64 and max(values) < _MAX_64):
            columns["attributes"] = [
                entries if value is None or -_MAX_64 <= value < _MAX_64 else None
                for entries, value in zip(columns["attributes"], columns[name], strict=True)
            ]
    return columns


def _replace_odd(
    columns: ColumnValues,
    records: list[Any],
    row_of: Callable[[Any], Row],
    others: Iterable[int] = (),
) -> None:
    """Replace the rows of records without entries, and of `others`, by those of `row_of`."""
    odd = {number for number, each in enumerate(columns["attributes"]) if each is None}
    for number in odd.union(others):
        row = row_of(exactjson.loads(encode(records[number]), max_depth=_MAX_DEPTH))
        for name, values in columns.items():
            values[number] = row[name]


# --- values ------------------------------------------------------------------------------------


def _text(raw: Any) -> str | None:
    return None if raw is UNSET else bytes(raw).decode()


@lru_cache(maxsize=4096)
def _status(otel: bytes) -> tuple[int | None, str | None]:
    return status_of(exactjson.loads(otel, max_depth=_MAX_DEPTH))


def _value(kind: str, text: bytes) -> Any:
    """Return a mark's value for the column of its type; `_ODD` if it is not stored exactly."""
    if text == b"null":
        return None
    read = _READERS.get(kind)
    return _ODD if read is None else read(text)


def _float(text: bytes) -> Any:
    try:
        value = float(text)
    except ValueError:
        return _ODD
    if repr(value).encode() == text:
        return value
    exact = exactjson.loads(text)
    return exact if type(exact) is float else _ODD


def _int(text: bytes) -> Any:
    try:
        value = int(text)
    except ValueError:
        return _ODD
    return value if -_MAX_64 <= value < _MAX_64 and str(value).encode() == text else _ODD


def _string(text: bytes) -> Any:
    try:
        return _string_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ODD


def _bool(text: bytes) -> Any:
    return {b"true": True, b"false": False}.get(text, _ODD)


def _nonfinite(mark: TypedMark) -> Any:
    """Return the value of a mark with `value_nonfinite` for the column of its type."""
    if mark.value != _NULL:
        return _ODD
    return NONFINITE.get(str(mark.value_nonfinite)) if mark.value_type == "float" else None


@lru_cache(maxsize=4096)
def _shape(text: bytes) -> list[int] | None:
    """Return a shape; None if it is not a list of integers that fit."""
    try:
        shape = _shape_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return shape if encode(shape) == text and int64s(shape) is not None else None


class _Histogram(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    bins: list[float]
    counts: list[int]


class _Statistics(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    mean: float
    std: float
    min: float
    max: float
    norm: float
    histogram: _Histogram


_shape_decoder = msgspec.json.Decoder(list[int])
_statistics_decoder = msgspec.json.Decoder(_Statistics)


def _statistics(text: bytes) -> Row:
    """Return the columns of a snapshot's statistics."""
    try:
        stats = _statistics_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        stats = None
    if stats is None or encode(stats) != text or int64s(stats.histogram.counts) is None:
        return statistics_of(exactjson.loads(text, max_depth=_MAX_DEPTH))
    return {
        "mean": stats.mean,
        "std": stats.std,
        "min": stats.min,
        "max": stats.max,
        "norm": stats.norm,
        "histogram_bins": stats.histogram.bins,
        "histogram_counts": stats.histogram.counts,
        "stats": None,
    }


_READERS: dict[str, Callable[[bytes], Any]] = {
    "float": _float, "int": _int, "string": _string, "bool": _bool,
}  # fmt: skip
