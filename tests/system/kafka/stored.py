"""The stored spans by their numbers, read as a stream: in PostgreSQL, and in columnar tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import duckdb
import psycopg

from cirron_otel.core.columns.reading import ColumnsReader
from tests.core.columns.test_columns_doc import SQL

from .load import span_of

_FETCHED = 50_000


class Rows:
    """The rows of TraceSpan, by the number of the span."""

    def __init__(self, url: str, spans: int) -> None:
        self._url, self.spans = url, spans

    def counts(self) -> bytearray:
        """The number of rows of each span, 255 at most."""
        counts = bytearray(self.spans)
        with psycopg.connect(self._url) as connection, connection.cursor("ids") as cursor:
            cursor.itersize = _FETCHED
            try:
                cursor.execute('SELECT "id" FROM "TraceSpan"')
            except psycopg.errors.UndefinedTable:
                return counts
            _count(counts, (row_id for (row_id,) in cursor))
        return counts

    def count(self) -> int:
        """The number of rows."""
        with psycopg.connect(self._url) as connection:
            try:
                [(count,)] = connection.execute('SELECT count(*) FROM "TraceSpan"').fetchall()
            except psycopg.errors.UndefinedTable:
                return 0
        return int(count)

    def has_all(self) -> bool:
        """Whether every span is stored."""
        return self.count() >= self.spans and not self.counts().count(0)


class TableRows:
    """The rows of the table `spans` in a directory or a bucket, by the number of the span."""

    def __init__(self, place: str, spans: int) -> None:
        self.place, self._spans = place, spans

    def counts(self) -> bytearray:
        """The number of rows that a reader finds of each span, 255 at most."""
        counts = bytearray(self._spans)
        for batch in ColumnsReader(self.place).scan("spans", columns=["id"]).to_batches():
            _count(counts, batch.column("id").to_pylist())
        return counts

    def counts_of_sql(self, relation: str = "counted_spans") -> bytearray:
        """Those of the view of docs/columns.md, or of another relation."""
        counts = bytearray(self._spans)
        [view] = [sql for sql in SQL if "VIEW counted_spans" in sql]
        with duckdb.connect() as engine:
            engine.execute("SET memory_limit = '600MB'; SET preserve_insertion_order = false")
            engine.execute(view.replace("'columns/", f"'{self.place}/"))
            rows = engine.execute(f"SELECT id FROM {relation}")
            while some := rows.fetchmany(_FETCHED):
                _count(counts, (row_id for (row_id,) in some))
        return counts

    def counts_of_files(self) -> bytearray:
        """Those of all rows in the files of a directory, as a glob finds them."""
        return self.counts_of_sql(f"read_parquet('{Path(self.place)}/spans/**/*.parquet')")


def _count(counts: bytearray, row_ids: Iterable[str]) -> None:
    for row_id in row_ids:
        number = span_of(row_id)
        counts[number] = min(255, counts[number] + 1)
