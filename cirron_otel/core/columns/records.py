"""Convert any record to a row and back; the difference that no column stores is in `extra`.

A row is a dict with the values of the columns by name. `batch_rows` adds the columns that describe
the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ... import exactjson
from ..records.columns import integer, number, well_formed
from ..records.schema import Batch, Mark, Snapshot, Span, shapes_of
from ..translator.residual import apply_diff, diff_of
from .attributes import attributes_of, entries_of
from .schema import BATCHES, BOOL, INT64, MAP, MARKS, SNAPSHOTS, SPANS, STRING, STRINGS, TABLES

Row = dict[str, Any]
Record = dict[str, Any]

VALUE_COLUMNS = {
    "float": "value_float",
    "int": "value_int",
    "string": "value_string",
    "bool": "value_bool",
}
"""The column of a mark's value, by its `value_type`."""
NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
STATISTICS = ("mean", "std", "min", "max", "norm")
_HISTOGRAM = ("bins", "counts")
_OPTIONAL = ("otel", "value_nonfinite")


# --- values of columns -------------------------------------------------------------------------


def text(value: Any) -> str | None:
    """Convert a value for a column of strings; None if it is not a string."""
    return well_formed(value) if isinstance(value, str) else None


def int64(value: Any) -> int | None:
    """Convert a value for a column of integers; None if it is not an integer or does not fit."""
    return integer(value, 64)


def _texts(value: Any) -> list[str] | None:
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return [well_formed(each) for each in value] if is_list else None


def int64s(value: Any) -> list[int] | None:
    """Convert a value for a column of lists of integers; None if an item does not fit."""
    is_list = isinstance(value, list) and all(int64(each) is not None for each in value)
    return value if is_list else None


def _doubles(value: Any) -> list[float] | None:
    is_list = isinstance(value, list) and all(type(each) is float for each in value)
    return value if is_list else None


def _bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    STRING: text, INT64: int64, STRINGS: _texts, BOOL: _bool, MAP: entries_of,
}  # fmt: skip
_COLUMN_OF_FIELD = {"attrs": "attributes"}


def _fields(table: str, record: type[Any]) -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """Return, by column, the field with the same meaning and its conversion."""
    types = {column.name: column.type for column in TABLES[table]}
    return {
        column: (field, _CONVERTERS[types[column]])
        for field in shapes_of(record)
        if (column := _COLUMN_OF_FIELD.get(field, field)) in types
        and field not in (*_OPTIONAL, "spans", "marks", "snapshots", "stats", "shape")
    }


_SPAN, _MARK = _fields(SPANS, Span), _fields(MARKS, Mark)
_SNAPSHOT, _BATCH = _fields(SNAPSHOTS, Snapshot), _fields(BATCHES, Batch)


def _row(
    fields: dict[str, tuple[str, Callable[[Any], Any]]], record: Any
) -> tuple[Row, Mapping[str, Any]]:
    """Return a row with the plain fields, and the record, or an empty one if it is no object."""
    values = record if isinstance(record, dict) else {}
    row = {column: convert(values.get(field)) for column, (field, convert) in fields.items()}
    row["otel"] = exactjson.dumps_ascii(values["otel"]) if "otel" in values else None
    return row, values


# --- spans -------------------------------------------------------------------------------------


def span_row(record: Any, mark_ids: Mapping[str, list[str]]) -> Row:
    """Return the row of a span; `mark_ids` has the ids of the marks in the batch, by span."""
    row, values = _row(_SPAN, record)
    if row["mark_ids"] == mark_ids.get(row["id"], []):
        row["mark_ids"] = None
    row["status_code"], row["status_message"] = status_of(values.get("otel"))
    row["extra"] = diff_of(record, _span_of(row, mark_ids)) or None
    return row


def status_of(otel: Any) -> tuple[int | None, str | None]:
    """Return the code and the message of the status in a span's `otel`."""
    status = otel.get("status") if isinstance(otel, dict) else None
    if not isinstance(status, dict):
        return None, None
    return int64(status.get("code")), text(status.get("message"))


def span_record(row: Row, mark_ids: Mapping[str, list[str]]) -> Any:
    """Return the span of a row. Raises InputError if the row is damaged."""
    return _exact(_span_of(row, mark_ids), row)


def _span_of(row: Row, mark_ids: Mapping[str, list[str]]) -> Record:
    record = {
        name: row[name]
        for name in (
            "id", "name", "parent_id", "index", "start_ns", "end_ns", "cpu_ns", "gpu_ns",
            "memory_peak_bytes", "thread_id", "pid", "rank",
        )
    }  # fmt: skip
    record["attrs"] = attributes_of(row["attributes"])
    listed = row["mark_ids"]
    record["mark_ids"] = list(mark_ids.get(row["id"], ())) if listed is None else listed
    return _with_otel(record, row)


def mark_ids_of(spans: list[Any], ids: list[Any]) -> dict[str, list[str]]:
    """Return the ids of the marks on each span, from the columns `span_id` and `id` of a batch."""
    ids_by_span: dict[str, list[str]] = {}
    for span_id, mark_id in zip(spans, ids, strict=True):
        if span_id is not None and mark_id is not None:
            ids_by_span.setdefault(span_id, []).append(mark_id)
    return ids_by_span


# --- marks -------------------------------------------------------------------------------------


def mark_row(record: Any) -> Row:
    """Return the row of a mark."""
    row, values = _row(_MARK, record)
    row["value_nonfinite"] = nonfinite = text(values.get("value_nonfinite"))
    value, value_type = values.get("value"), row["value_type"]
    row |= dict.fromkeys(VALUE_COLUMNS.values())
    if value_type == "float":
        value = NONFINITE.get(nonfinite or "") if value is None else value
        row["value_float"] = value if type(value) is float else number(value)
    elif value_type in VALUE_COLUMNS:
        convert = {"int": int64, "string": text, "bool": _bool}[value_type]
        row[VALUE_COLUMNS[value_type]] = convert(value)
    row["extra"] = diff_of(record, _mark_of(row)) or None
    return row


def mark_record(row: Row) -> Any:
    """Return the mark of a row. Raises InputError if the row is damaged."""
    return _exact(_mark_of(row), row)


def _mark_of(row: Row) -> Record:
    column = VALUE_COLUMNS.get(row["value_type"] or "")
    is_null = column is None or row["value_nonfinite"] is not None
    record = {
        "id": row["id"],
        "span_id": row["span_id"],
        "name": row["name"],
        "value_type": row["value_type"],
        "value": None if is_null else row[column],  # type: ignore[index]
        "attrs": attributes_of(row["attributes"]),
        "ts_ns": row["ts_ns"],
        "kind": row["kind"],
    }
    if row["value_nonfinite"] is not None:
        record["value_nonfinite"] = row["value_nonfinite"]
    return _with_otel(record, row)


# --- snapshots ---------------------------------------------------------------------------------


def snapshot_row(record: Any) -> Row:
    """Return the row of a snapshot."""
    row, values = _row(_SNAPSHOT, record)
    row["shape"] = int64s(values.get("shape"))
    row |= statistics_of(values.get("stats"))
    row["extra"] = diff_of(record, _snapshot_of(row)) or None
    return row


def statistics_of(stats: Any) -> Row:
    """Return the columns of a snapshot's statistics, a value of `exactjson.loads`."""
    values = stats if isinstance(stats, dict) else {}
    histogram = values.get("histogram")
    parts = histogram if isinstance(histogram, dict) else {}
    row: Row = {
        name: value if type(value := values.get(name)) is float else None for name in STATISTICS
    }
    row["histogram_bins"] = _doubles(parts.get("bins"))
    row["histogram_counts"] = int64s(parts.get("counts"))
    row["stats"] = None
    if not exactjson.equal(_statistics_record(row), stats):
        row["stats"] = exactjson.dumps_ascii(stats)
    return row


def _statistics_record(row: Row) -> Record | None:
    """Return the statistics that follow from the seven columns; None if they are null."""
    bins, counts = row["histogram_bins"], row["histogram_counts"]
    values = {name: row[name] for name in STATISTICS}
    if bins is None and counts is None and not any(v is not None for v in values.values()):
        return None
    return values | {"histogram": dict(zip(_HISTOGRAM, (bins, counts), strict=True))}


def snapshot_record(row: Row) -> Any:
    """Return the snapshot of a row. Raises InputError if the row is damaged."""
    return _exact(_snapshot_of(row), row)


def _snapshot_of(row: Row) -> Record:
    stats = row["stats"]
    record = {
        "id": row["id"],
        "span_id": row["span_id"],
        "tensor_name": row["tensor_name"],
        "shape": row["shape"],
        "dtype": row["dtype"],
        "mode": row["mode"],
        "stats": _statistics_record(row) if stats is None else exactjson.loads(stats),
        "blob_uri": row["blob_uri"],
        "ts_ns": row["ts_ns"],
        "attrs": attributes_of(row["attributes"]),
    }
    return _with_otel(record, row)


# --- batches -----------------------------------------------------------------------------------


def batch_row(batch: Record, lists: Mapping[str, list[Any]]) -> Row:
    """Return the columns of a batch's own fields; `lists` are its lists of records."""
    row, values = _row(_BATCH, batch)
    decoded = _batch_of(row, lists)
    row["extra"] = diff_of(dict(values), decoded) or None
    return row


def batch_record(row: Row, lists: Mapping[str, list[Any]]) -> Any:
    """Return the batch of a row and its records. Raises InputError if the row is damaged."""
    return _exact(_batch_of(row, lists), row)


def _batch_of(row: Row, lists: Mapping[str, list[Any]]) -> Record:
    names = ("schema_version", "sdk_version", "batch_id", "created_ns")
    return _with_otel({name: row[name] for name in names} | dict(lists), row)


def _with_otel(record: Record, row: Row) -> Record:
    if row["otel"] is not None:
        record["otel"] = exactjson.loads(row["otel"])
    return record


def _exact(record: Record, row: Row) -> Any:
    return record if row["extra"] is None else apply_diff(record, row["extra"])
