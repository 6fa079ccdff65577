"""The tables as Arrow data, and their rows as Python values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from .schema import (
    BOOL,
    DOUBLE,
    DOUBLES,
    FORMAT_VERSION,
    INT32,
    INT64,
    INT64S,
    MAP,
    STRING,
    STRINGS,
    TABLES,
    VALUE_FIELDS,
    VERSION_KEY,
    ColumnValues,
    Entry,
)

METADATA = {VERSION_KEY: str(FORMAT_VERSION)}
"""The metadata of every file."""
_SCALARS = {
    STRING: pa.string(), INT32: pa.int32(), INT64: pa.int64(), DOUBLE: pa.float64(),
    BOOL: pa.bool_(),
}  # fmt: skip
_VALUE = pa.struct([pa.field(name, _SCALARS[type_]) for name, type_ in VALUE_FIELDS])
_TYPES = _SCALARS | {
    STRINGS: pa.list_(pa.string()),
    INT64S: pa.list_(pa.int64()),
    DOUBLES: pa.list_(pa.float64()),
    MAP: pa.map_(pa.string(), _VALUE),
}


@lru_cache
def schema_of(table: str) -> pa.Schema:
    """Return the Arrow schema of a table."""
    fields = [
        pa.field(column.name, _TYPES[column.type], nullable=column.is_nullable)
        for column in TABLES[table]
    ]
    return pa.schema(fields, metadata=METADATA)


def record_batch(table: str, columns: ColumnValues) -> pa.RecordBatch:
    """Convert the columns of a table to Arrow."""
    schema = schema_of(table)
    arrays = [
        _map_array(columns[field.name])
        if pa.types.is_map(field.type)
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _map_array(rows: list[tuple[Entry, ...]]) -> pa.MapArray:
    offsets = [0, *itertools.accumulate(map(len, rows))]
    entries = list(itertools.chain.from_iterable(rows))
    keys, *values = zip(*entries, strict=True) if entries else [()] * len(Entry._fields)
    children = [pa.array(each, field.type) for each, field in zip(values, _VALUE, strict=True)]
    structs = pa.StructArray.from_arrays(children, fields=list(_VALUE))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), structs
    )


def rows_of(table: pa.Table, names: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; `attributes` are entries as in `schema`."""
    names = table.column_names if names is None else list(names)
    columns = [_values(table.column(name)) for name in names]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_map(column.type):
        values: list[Any] = column.to_pylist()
        return values
    rows: list[Any] = []
    for chunk in column.chunks:
        rows += _entries(chunk)
    return rows


def _entries(array: pa.MapArray) -> list[tuple[Entry, ...]]:
    """Return the entries of each row; converting the parts of a map is faster than its rows."""
    offsets = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    keys = array.keys.slice(first, last - first).to_pylist()
    items = array.items.slice(first, last - first)
    fields = [items.field(name).to_pylist() for name, _ in VALUE_FIELDS]
    entries = list(map(Entry, keys, *fields))
    return [
        tuple(entries[start - first : end - first]) for start, end in itertools.pairwise(offsets)
    ]
