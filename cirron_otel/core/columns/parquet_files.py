"""Write and read the Parquet file of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import InputError
from .arrow import METADATA, schema_of
from .schema import (
    BATCHES,
    DOUBLES,
    FORMAT_VERSION,
    INT32,
    INT64,
    INT64S,
    KEY_DIGITS,
    MAP,
    STRINGS,
    TABLES,
    TIME_OF_TABLE,
    VALUE_FIELDS,
    VERSION_KEY,
    Column,
)

ROW_GROUP_ROWS = 65_536
_KEY = "batch_key"
_KEY_PATTERN = f"^[0-9a-f]{{{KEY_DIGITS}}}$"
_LISTS = (STRINGS, INT64S, DOUBLES)
_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError)


def write_table(file: BinaryIO, table: str, batches: list[Any], rows_per_group: int) -> None:
    """Write RecordBatches as a file, in the order of time. Raises OSError."""
    rows = pa.Table.from_batches(batches, schema=schema_of(table))
    order = pc.sort_indices(rows.column(TIME_OF_TABLE[table]))  # stable; nulls are last
    with pq.ParquetWriter(file, rows.schema, **_OPTIONS[table]) as writer:
        writer.add_key_value_metadata(METADATA)
        writer.write_table(rows.take(order), row_group_size=rows_per_group)


RowGroupFilter = Callable[[Mapping[str, Any]], bool]
"""Takes the statistics of a row group by column; returns whether its rows are wanted."""


def read_table(
    source: Any,
    table: str,
    columns: list[str] | None = None,
    is_wanted: RowGroupFilter | None = None,
) -> Any:
    """Read the columns of a file, by default all; of all row groups, or of those that are wanted.

    Raises InputError.
    """
    try:
        with pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True) as file:
            schema = schema_of(table)
            _check(file.schema_arrow, schema)
            names = schema.names if columns is None else columns
            fields = pa.schema([schema.field(name) for name in names])
            numbers = list(range(file.num_row_groups))
            if is_wanted is not None:
                numbers = [n for n in numbers if is_wanted(_statistics(file.metadata.row_group(n)))]
            rows = file.read_row_groups(numbers, columns=names).select(names).cast(fields)
            check_rows(rows, table)
            return rows
    except _ERRORS as error:
        raise InputError(_reason(error)) from None


def _statistics(row_group: Any) -> dict[str, Any]:
    """Return the statistics of the columns that have some."""
    columns = map(row_group.column, range(row_group.num_columns))
    return {
        each.path_in_schema: each.statistics
        for each in columns
        if each.statistics is not None and each.statistics.has_min_max
    }


def _check(found: Any, schema: Any) -> None:
    """Raise InputError if a file is not one of this format."""
    version = (found.metadata or {}).get(VERSION_KEY.encode())
    if version is None:
        raise InputError(f"no {VERSION_KEY} in its metadata: expected a file of `convert`")
    if version != METADATA[VERSION_KEY].encode():
        raise InputError(
            f"format version {version.decode('utf-8', 'replace')}: expected {FORMAT_VERSION};"
            " use a release that reads this version"
        )
    missing = [name for name in schema.names if name not in found.names]
    if missing:
        raise InputError(f"no column {missing[0]!a}: expected the columns of docs/columns.md")


def check_rows(rows: Any, table: str) -> None:
    """Raise InputError or ArrowInvalid for values that no conversion wrote, as in a damaged file.

    Arrow does not check the UTF-8 of strings when it reads them.
    """
    rows.validate(full=True)
    if table == BATCHES and _KEY in rows.column_names:
        keys = rows.column(_KEY)
        if pc.all(pc.match_substring_regex(keys, _KEY_PATTERN)).as_py() is False:
            raise InputError(f"a {_KEY} is not {KEY_DIGITS} hexadecimal digits")


def _reason(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    return text.splitlines()[0]


def _options(columns: tuple[Column, ...]) -> dict[str, Any]:
    """Return how the columns are encoded; Parquet's names of nested columns are paths."""
    dictionaries: list[str] = []
    encodings: dict[str, str] = {}
    for name, type_, _, is_repetitive in columns:
        if type_ == MAP:
            dictionaries.append(f"{name}.key_value.key")
            dictionaries += [f"{name}.key_value.value.{field}" for field, _ in VALUE_FIELDS[:-1]]
        elif is_repetitive:
            dictionaries.append(f"{name}.list.element" if type_ in _LISTS else name)
        elif type_ in (INT32, INT64):
            encodings[name] = "DELTA_BINARY_PACKED"
    return {
        "compression": "zstd",
        "use_dictionary": dictionaries,
        "column_encoding": encodings,
        "write_page_checksum": True,
        "store_schema": False,  # engines read the same types, whoever wrote the file
    }


_OPTIONS = {table: _options(columns) for table, columns in TABLES.items()}
