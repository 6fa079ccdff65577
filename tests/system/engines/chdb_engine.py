"""chDB, an engine for tests: ClickHouse in the process, which `cirron_otel` does not name.

`python -m tests.system.engines.chdb_engine report,relations:DIR...` prints documents of tables.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from chdb.session import Session
from ibis.backends.sql.compilers.clickhouse import ClickHouseCompiler

from cirron_otel.core.engines.duckdb_engine import DuckDBEngine, arrow_schema
from cirron_otel.core.engines.engine import MARK, SPAN, Schema, SqlEngine, Table

from .documents import print_documents

_TYPES = {"int64": "Int64", "string": "String", "boolean": "Bool", "float64": "Float64"}
_SETTINGS = {"join_use_nulls": 1, "max_threads": 1, "prefer_column_name_to_alias": 1}
"""A missing row of a join is NULL, as in SQL, and an alias does not replace a column."""


class ExactClickHouseCompiler(ClickHouseCompiler):  # type: ignore[misc]
    """The compiler of Ibis, with exact counts and with letters outside ASCII."""

    __slots__ = ()
    dialect: ClassVar[Any] = ClickHouseCompiler.dialect
    type_mapper: ClassVar[Any] = ClickHouseCompiler.type_mapper
    SIMPLE_OPS: ClassVar[dict[Any, str]] = {}
    """The methods of these would replace those below; the others are inherited."""

    def visit_CountDistinct(self, op: Any, *, arg: Any, where: Any) -> Any:  # noqa: ARG002, N802 - a name of Ibis
        return self.agg.uniqExact(arg, where=where)

    def visit_Lowercase(self, op: Any, *, arg: Any) -> Any:  # noqa: ARG002, N802 - a name of Ibis
        return self.f.lowerUTF8(arg)


class ChdbEngine(SqlEngine):
    """A database in a temporary directory."""

    dialect: ClassVar[str] = "clickhouse"

    def __init__(self, files: DuckDBEngine) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="chdb-")
        self._session = self._connected()
        try:
            self._load("span", SPAN, files)
            self._load("mark", MARK, files)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._session.close()
        self._folder.cleanup()

    def compiler(self) -> Any:
        return ExactClickHouseCompiler()

    def create(self, name: str, query: str) -> None:
        self._session.query(f"CREATE TABLE {name} ENGINE = Memory AS {query}")

    def record_batches(self, expression: Table, size: int) -> Iterator[pa.RecordBatch]:
        """Read by a session of its own, since one reads one query at a time."""
        with contextlib.closing(self._connected()) as session:
            for batch in session.send_query(self.sql(expression), "Arrow").record_batch(size):
                for start in range(0, batch.num_rows, size):
                    yield batch.slice(start, size)

    def _connected(self) -> Session:
        session = Session(f"{self._folder.name}/database")
        for name, value in _SETTINGS.items():
            session.query(f"SET {name} = {value}")
        return session

    def _load(self, name: str, schema: Schema, files: DuckDBEngine) -> None:
        """Create a table. A view of the file does not suffice: in chDB 26.9, it lacks rows if only
        some of its columns are needed.
        """
        path, types = Path(self._folder.name) / f"{name}.parquet", arrow_schema(schema)
        with pq.ParquetWriter(path, types) as writer:
            for batch in files.arrow(name):
                writer.write_table(pa.Table.from_batches([batch]).cast(types))
        columns = ", ".join(
            f"{column} Nullable({_TYPES[type_]})" for column, type_ in schema.items()
        )
        self.create(name, f"SELECT * FROM file('{path}', Parquet, '{columns}')")


if __name__ == "__main__":
    print_documents(sys.argv[1:], ChdbEngine)
