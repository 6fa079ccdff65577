"""Tables as plain Python values, so that those of several libraries can be compared."""

from __future__ import annotations

import math
from typing import Any

from cirron_otel.tools.frames.lazy_table import LazyTable

Rows = list[dict[str, Any]]


def arrow_rows(table: LazyTable) -> Rows:
    """The rows of the Arrow table."""
    return list(map(_plain_row, table.to_arrow().to_pylist()))


def polars_rows(table: LazyTable) -> Rows:
    """The rows of the Polars frame."""
    return list(map(_plain_row, table.to_polars().to_dicts()))


def pandas_rows(table: LazyTable) -> Rows:
    """The rows of the pandas frame."""
    import pandas as pd

    frame = table.to_pandas()
    rows: Rows = [{} for _ in range(len(frame))]
    for name in frame.columns:
        for row, value in zip(rows, frame[name].tolist(), strict=True):
            row[name] = None if value is pd.NA else value
    return list(map(_plain_row, rows))


def _plain_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: dict(map(_entry, _items(value))) if name == "attributes" else _plain(value)
        for name, value in row.items()
    }


def _items(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else value


def _entry(entry: Any) -> tuple[str, Any]:
    """An entry of a map, a pair, and in old versions of Polars a struct."""
    key, value = (entry["key"], entry["value"]) if isinstance(entry, dict) else entry
    return key, _plain(value)


def _plain(value: Any) -> Any:
    """Arrays as lists, and NaN as a value that equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value
