"""Read batches back from the tables, in the order of their file names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....errors import InputError
from ...records.columns import TraceBatch
from .database import Database, quoted
from .rows import COLUMNS, column_of_name, data_of, name_of_column, record_of
from .store import Select

_PAGE_BATCHES = 64
_HEADER = ("batchKey", "name", "schemaVersion", "sdkVersion", "batchId", "createdNs", "extra")

_FIELDS = TraceBatch.__struct_fields__


def _conditions(select: Select) -> tuple[str, list[Any]]:
    """Return SQL conditions on the table of batches (alias b), and their parameters."""
    texts: list[str] = []
    values: list[Any] = []
    for column, owner_id in (("workspaceId", select.workspace_id), ("runId", select.run_id)):
        if owner_id is not None:
            texts.append(_belongs(column))
            values += [owner_id] * texts[-1].count("?")
    for sign, time in ((">=", select.since_ns), ("<", select.until_ns)):
        if time is not None:
            texts.append(f'b."createdNs" {sign} ?')
            values.append(time)
    if select.name is not None:
        texts.append('b."name" = ?')
        values.append(column_of_name(select.name))
    return "".join(f" AND ({text})" for text in texts), values


def _belongs(column: str) -> str:
    def of_attached(table: str) -> str:
        return (
            f'EXISTS (SELECT 1 FROM "{table}" m JOIN "TraceSpan" s'  # noqa: S608
            ' ON s."id" = m."spanId" OR s."traceId" = m."spanId"'
            f' WHERE m."batchKey" = b."batchKey" AND s."{column}" = ?)'
        )

    of_spans = (
        'EXISTS (SELECT 1 FROM "TraceSpan" s WHERE s."batchKey" = b."batchKey"'  # noqa: S608
        f' AND s."{column}" = ?)'
    )
    whole = f'b."{column}" = ?'
    return " OR ".join((whole, of_spans, of_attached("TraceMark"), of_attached("TraceSnapshot")))


def stored_batches(database: Database, select: Select) -> Iterator[tuple[str, bytes]]:
    """Yield (file name, bytes) of each batch; batches of one name are adjacent.

    All are read from one snapshot of the database, a page at a time. Raises InputError if a batch
    is damaged.
    """
    condition, values = _conditions(select)
    last: tuple[str, int] = ("", 0)
    with database.snapshot():
        while True:
            page = database.rows(
                f'SELECT {quoted(_HEADER)} FROM "TraceBatch" b'  # noqa: S608
                f' WHERE (b."name", b."batchKey") > (?, ?){condition}'
                f' ORDER BY b."name", b."batchKey" LIMIT {_PAGE_BATCHES}',
                *last,
                *values,
            )
            if not page:
                return
            yield from _page_of(database, page)
            last = (page[-1][1], page[-1][0])


def _page_of(database: Database, page: list[tuple[Any, ...]]) -> Iterator[tuple[str, bytes]]:
    keys = [row[0] for row in page]
    records_by_kind: dict[str, dict[int, list[Any]]] = {
        kind: {key: [] for key in keys} for kind in COLUMNS
    }
    condition = database.in_clause('"batchKey"')
    for kind, columns in COLUMNS.items():
        rows = database.rows(
            f'SELECT {quoted(columns)} FROM "{kind}" WHERE {condition}'  # noqa: S608
            ' ORDER BY "batchKey", "ordinal"',
            database.array_param(keys),
        )
        for row in rows:
            records_by_kind[kind][row[0]].append(record_of(kind, row))
    bodies = dict(
        database.rows(
            'SELECT "batchKey", "body" FROM "TraceBatch"'  # noqa: S608
            f' WHERE {condition} AND "body" IS NOT NULL',
            database.array_param(keys),
        )
    )
    for key, name, *header in page:
        records = {kind: records_by_kind[kind].pop(key) for kind in COLUMNS}
        try:
            whole = TraceBatch(**dict(zip(_FIELDS, header, strict=True)))
            yield name_of_column(name), data_of(whole, bodies.get(key), records)
        except InputError as error:
            raise InputError(f"the stored batch {name!a} is damaged: {error}") from None
