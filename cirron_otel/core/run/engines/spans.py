"""Rows of the relation `span` as the spans that figures use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ...engines.engine import SPAN, SqlEngine, Table
from ..load.stored_span import StoredSpan

COLUMNS: Final = len(SPAN)


class ReadSpan(NamedTuple):
    """A span, its number, and the columns that a query has after those of `span`."""

    no: int
    span: StoredSpan
    others: tuple[Any, ...]


def read_spans(engine: SqlEngine, expression: Table) -> Iterator[ReadSpan]:
    """Yield the rows of an expression whose first columns are those of `span`."""
    for row in engine.streamed(expression):
        yield ReadSpan(row[0], span_of(row), row[COLUMNS:])


def span_of(row: tuple[Any, ...]) -> StoredSpan:
    """Return the span of a row that starts with the columns of `span`."""
    (
        _, _, id_, parent, name, idx, start_ns, end_ns, pid, rank, thread_id, error, gpu_ns,
        memory_peak, device_peak, reserved_peak, is_sampled, are_sums, training, origin,
    ) = row[:COLUMNS]  # fmt: skip
    return StoredSpan(
        id_, parent, name, idx, start_ns, end_ns, pid, rank, thread_id, gpu_ns, memory_peak,
        otel=None if error is None else {}, message=error, peaks=(device_peak, reserved_peak),
        has_samples=bool(is_sampled), has_sums=bool(are_sums), has_origin=origin is not None,
        training=training,
    )  # fmt: skip
