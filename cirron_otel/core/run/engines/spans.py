"""Rows of the relation `span` as the spans that figures use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ...engines.engine import SPAN, SqlEngine, Table
from ..load.indexed import StoredSpan, stored_span

COLUMNS: Final = len(SPAN)
_AT_ONCE: Final = 10_000


class ReadSpan(NamedTuple):
    """A span, its number, and the columns that a query has after those of `span`."""

    no: int
    span: StoredSpan
    others: tuple[Any, ...]


def read_spans(engine: SqlEngine, expression: Table) -> Iterator[ReadSpan]:
    """Yield the rows of an expression whose first columns are those of `span`."""
    for batch in engine.record_batches(expression, _AT_ONCE):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield ReadSpan(row[0], stored_span(row[4:COLUMNS], *row[2:4]), row[COLUMNS:])
