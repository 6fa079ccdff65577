"""Rows as Arrow tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from ...core.analysis.session_columns import TableColumn
from ...core.columns.arrow import record_batch, schema_of
from ...core.columns.batch_rows import rows_of
from ...core.columns.schema import SPANS, TIME_OF_TABLE
from ...core.records.problems import ReadingProblem
from ...core.spool.reader import BatchFile
from ...errors import InputError

_CHUNK_ROWS: Final = 65_536


def schema_of_columns(columns: Sequence[TableColumn]) -> pa.Schema:
    """Return the Arrow schema of columns."""
    return pa.schema([(column.name, pa.type_for_alias(column.type)) for column in columns])


def chunks_of(
    columns: Sequence[TableColumn], rows: Iterable[tuple[Any, ...]]
) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches of 65,536."""
    schema = schema_of_columns(columns)
    remaining = iter(rows)
    while chunk := list(itertools.islice(remaining, _CHUNK_ROWS)):
        values = zip(*chunk, strict=True)
        arrays = [pa.array(each, field.type) for each, field in zip(values, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def table_of(columns: Sequence[TableColumn], rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Return rows as a table."""
    return pa.Table.from_batches(chunks_of(columns, rows), schema_of_columns(columns))


Owner = Callable[[str, Any], tuple[str | None, str | None]]
"""Returns the run and the session of a record by the name of its batch and the id of its span."""


def table_of_records(
    name: str,
    batches: Iterable[BatchFile],
    on_finding: Callable[[ReadingProblem], None],
    owner: Owner,
) -> pa.Table:
    """Return the rows of a table of docs/columns.md in order of time, those without a time last.

    `owner` supplies the run and the session of records that do not name them.
    """
    parts = []
    for batch in batches:
        try:
            rows = rows_of(batch.name, batch.data)
        except InputError as error:
            on_finding(ReadingProblem(batch.name, "unreadable", str(error)))
        else:
            columns = rows.tables[name]
            _complete(columns, columns["id" if name == SPANS else "span_id"], batch.name, owner)
            parts.append(record_batch(name, columns))
    table = pa.Table.from_batches(parts, schema_of(name))
    order = [(key, "ascending") for key in (TIME_OF_TABLE[name], "batch_key", "ordinal")]
    return table.sort_by(order)


def _complete(columns: dict[str, list[Any]], spans: list[Any], batch: str, owner: Owner) -> None:
    runs, sessions = columns["run_id"], columns["session_id"]
    for place, span in enumerate(spans):
        if runs[place] is None or sessions[place] is None:
            run, session = owner(batch, span)
            runs[place] = run if runs[place] is None else runs[place]
            sessions[place] = session if sessions[place] is None else sessions[place]
