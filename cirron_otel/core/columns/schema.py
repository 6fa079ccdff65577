"""The tables, their columns and the types of these (docs/columns.md), without a library.

The values of a table are a `ColumnValues`: for each column a list with one value a row. The values
of `attributes` are tuples of `Entry`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

FORMAT_VERSION = 1
VERSION_KEY = "cirron.columns"
"""The key in the metadata of each file; its value is the format version in decimal."""
KEY_DIGITS = 32
"""The length of a `batch_key`, hexadecimal digits."""

STRING, INT32, INT64, DOUBLE, BOOL = "string", "int32", "int64", "double", "bool"
STRINGS, INT64S, DOUBLES = "list<string>", "list<int64>", "list<double>"
MAP = "map"

SPANS, MARKS, SNAPSHOTS = "spans", "marks", "snapshots"
SESSIONS, BATCHES = "sessions", "batches"
RECORD_TABLES = (SPANS, MARKS, SNAPSHOTS)

ColumnValues: TypeAlias = dict[str, list[Any]]


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: str
    is_nullable: bool = True
    is_repetitive: bool = True
    """Whether its values repeat, so that a dictionary makes them smaller."""


class Entry(NamedTuple):
    """An attribute: its key, and its value in one of five types. Null is the JSON text `null`."""

    key: str
    string_value: str | None = None
    int_value: int | None = None
    double_value: float | None = None
    bool_value: bool | None = None
    json_value: str | None = None


VALUE_FIELDS = (
    ("string_value", STRING), ("int_value", INT64), ("double_value", DOUBLE), ("bool_value", BOOL),
    ("json_value", STRING),
)  # fmt: skip
"""The fields of an attribute's value."""


def _unique(name: str, type_: str = STRING, *, is_nullable: bool = True) -> Column:
    return Column(name, type_, is_nullable, is_repetitive=False)


_PLACE = (
    Column("batch_key", STRING, is_nullable=False),
    _unique("ordinal", INT32, is_nullable=False),
    Column("run_id", STRING),
    Column("session_id", STRING),
)
_REST = (Column("otel", STRING), _unique("extra"))
_ATTRIBUTES = Column("attributes", MAP, is_nullable=False)
_STATUS = (Column("status_code", INT64), Column("status_message", STRING))

TABLES: dict[str, tuple[Column, ...]] = {
    SPANS: (
        *_PLACE,
        _unique("id"),
        Column("name", STRING),
        Column("parent_id", STRING),
        Column("index", INT64),
        _unique("start_ns", INT64),
        _unique("end_ns", INT64),
        Column("cpu_ns", INT64),
        Column("gpu_ns", INT64),
        Column("memory_peak_bytes", INT64),
        Column("thread_id", INT64),
        Column("pid", INT64),
        Column("rank", INT64),
        _ATTRIBUTES,
        _unique("mark_ids", STRINGS),
        *_STATUS,
        *_REST,
    ),
    MARKS: (
        *_PLACE,
        _unique("id"),
        Column("span_id", STRING),
        Column("name", STRING),
        Column("value_type", STRING),
        _unique("value_float", DOUBLE),
        Column("value_int", INT64),
        Column("value_string", STRING),
        _unique("value_bool", BOOL),
        Column("value_nonfinite", STRING),
        _unique("ts_ns", INT64),
        Column("kind", STRING),
        _ATTRIBUTES,
        *_REST,
    ),
    SNAPSHOTS: (
        *_PLACE,
        _unique("id"),
        Column("span_id", STRING),
        Column("tensor_name", STRING),
        Column("shape", INT64S),
        Column("dtype", STRING),
        Column("mode", STRING),
        *(_unique(name, DOUBLE) for name in ("mean", "std", "min", "max", "norm")),
        _unique("histogram_bins", DOUBLES),
        _unique("histogram_counts", INT64S),
        Column("stats", STRING),
        Column("blob_uri", STRING),
        _unique("ts_ns", INT64),
        _ATTRIBUTES,
        *_REST,
    ),
    SESSIONS: (
        Column("batch_key", STRING, is_nullable=False),
        Column("session_id", STRING),
        Column("workspace_id", STRING, is_nullable=False),
        Column("run_id", STRING),
        Column("run_name", STRING),
        Column("service_name", STRING),
        Column("host_name", STRING),
        Column("world_size", INT64),
        Column("rank", INT64),
        Column("pid", INT64),
        Column("spans", INT64, is_nullable=False),
        _unique("start_ns", INT64),
        _unique("end_ns", INT64),
        _unique("root_start_ns", INT64),
        _unique("root_end_ns", INT64),
        *_STATUS,
        _ATTRIBUTES,
    ),
    BATCHES: (
        _unique("batch_key", is_nullable=False),
        _unique("ordinal", INT32, is_nullable=False),
        _unique("name", is_nullable=False),
        _unique("hash", is_nullable=False),
        _unique("size_bytes", INT64, is_nullable=False),
        Column("workspace_id", STRING, is_nullable=False),
        Column("run_id", STRING),
        Column("session_id", STRING),
        Column("spans", INT64, is_nullable=False),
        Column("marks", INT64, is_nullable=False),
        Column("snapshots", INT64, is_nullable=False),
        Column("schema_version", INT64),
        Column("sdk_version", STRING),
        _unique("batch_id"),
        _unique("created_ns", INT64),
        Column("otel", STRING),
        _unique("extra"),
    ),
}
"""The columns of each table, in their order in the files."""

TIME_OF_TABLE = {
    SPANS: "start_ns", MARKS: "ts_ns", SNAPSHOTS: "ts_ns", SESSIONS: "start_ns",
    BATCHES: "created_ns",
}  # fmt: skip
"""The column by which the rows of each table are ordered."""


def no_rows(table: str) -> ColumnValues:
    """Return empty lists for the columns of a table."""
    return {column.name: [] for column in TABLES[table]}
