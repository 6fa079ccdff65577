"""PostgreSQL: the relations are temporary tables of one transaction, which is never committed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.csv as pa_csv

from ...errors import EndpointError, MissingExtraError, TargetError, UsageError
from ..targets.otlp.transport import without_secrets
from ..targets.sql.url import Location, parse_url
from .duckdb_engine import DuckDBEngine, arrow_schema
from .engine import MARK, SPAN, Schema, SqlEngine, Table
from .postgres_sql import ExactPostgresCompiler, escaped_column, unescaped_column
from .unsupported import NeedsPythonError

try:
    import psycopg

    from ..targets.sql.postgres import connected
except ImportError as _error:  # the driver, or the library that it needs, is not installed
    raise MissingExtraError("postgres", "--engine postgresql://") from _error

PREFIXES: Final = ("postgres://", "postgresql://")
_USE: Final = "use postgresql://USER@HOST/DATABASE, and escape special characters (%2F for /)"
_COMPILER: Final = ExactPostgresCompiler()
_TYPES: Final = {
    "int64": "bigint", "string": 'text COLLATE "C"', "boolean": "boolean",
    "float64": "double precision",
}  # fmt: skip
"""Text is ordered by its bytes, whatever the order of the database is."""
_SETTINGS: Final = """
SET LOCAL search_path = pg_temp, pg_catalog;
SET LOCAL standard_conforming_strings = on;
SET LOCAL cursor_tuple_fraction = 1
"""
# SQLSTATEs: Appendix A of PostgreSQL's documentation.
_NOT_TEXT: Final = ("22021", "22P05")
"""Characters that the encoding of the database lacks."""
_NO_SPACE: Final = ("53100", "53400")
"""A full disk, and the limit `temp_file_limit`."""
_NOT_ALLOWED: Final = ("25006", "42501")
"""A read-only transaction, and a missing privilege."""


def postgres(url: str) -> Callable[[DuckDBEngine], PostgresEngine]:
    """Return the function that connects to a database, and copies the relations of a run into it.

    Raises UsageError, whose message contains no password, if the URL is not valid.
    """
    try:
        location = parse_url(url)
    except UsageError:
        raise UsageError(f"the URL of --engine is not valid: {_USE}") from None
    return partial(PostgresEngine, location)


class PostgresEngine(SqlEngine):
    """A transaction that reads and writes only its own temporary tables."""

    dialect: ClassVar[str] = "postgres"

    def __init__(self, location: Location, files: DuckDBEngine) -> None:
        """Connect, and copy the rows of the relations. Raises the errors of SqlEngine."""
        super().__init__()
        self._location, self._has_escapes, self._cursors = location, False, 0
        with self._errors():
            self._connection = connected(location, autocommit=False)
        try:
            with self._errors():
                self._connection.execute(_SETTINGS)
                self._load("span", SPAN, files.arrow("span"))
                self._load("mark", MARK, files.arrow("mark"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Roll back the transaction, which drops all tables, and disconnect."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def compiler(self) -> Any:
        """Return the compiler of Ibis."""
        return _COMPILER

    def create(self, name: str, query: str) -> None:
        """Create a temporary table from a query."""
        self._execute(f"CREATE TEMPORARY TABLE {name} ON COMMIT DROP AS {query}")
        self._execute(f"ANALYZE {name}")

    def record_batches(self, expression: Table, size: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an expression, in its order, as record batches of about `size`."""
        query, schema = self.sql(expression).encode(), _arrow_schema(expression)
        self._cursors += 1
        name = f"rows_{self._cursors}"
        with self._errors(), self._connection.cursor(name, binary=True) as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(size):
                columns = zip(zip(*rows, strict=True), schema.types, strict=True)
                arrays = [pa.array(values, type_) for values, type_ in columns]
                if self._has_escapes:
                    arrays = [unescaped_column(each) for each in arrays]
                yield pa.record_batch(arrays, schema=schema)

    def _execute(self, statement: str) -> None:
        with self._errors():
            self._connection.execute(statement.encode())

    def _load(self, name: str, schema: Schema, batches: Iterator[pa.RecordBatch]) -> None:
        columns = ", ".join(f"{column} {_TYPES[type_]}" for column, type_ in schema.items())
        self._execute(f"CREATE TEMPORARY TABLE {name} ({columns}) ON COMMIT DROP")
        types = arrow_schema(schema)
        options = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
        copy_in = f"COPY {name} FROM STDIN (FORMAT csv)".encode()
        with self._connection.cursor() as cursor, cursor.copy(copy_in) as copy:
            for batch in batches:
                rows = pa.Table.from_batches([batch]).cast(types)
                for place, column in enumerate(rows.columns):
                    if (changed := escaped_column(column)) is not None:
                        rows = rows.set_column(place, types.field(place), changed)
                        self._has_escapes = True
                text = io.BytesIO()
                pa_csv.write_csv(rows, text, options)
                copy.write(text.getbuffer())
        self._execute(f"ANALYZE {name}")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._error(error) from None

    def _error(self, error: psycopg.Error) -> Exception:
        shown, state = self._location.shown, error.sqlstate or ""
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = without_secrets(lines[0], self._location.secrets)
        if state in _NOT_TEXT:
            return NeedsPythonError(f"a text has a character that {shown} cannot store")
        if state in _NO_SPACE:
            return TargetError(f"{shown} cannot write its temporary tables: {text}; make space")
        if state in _NOT_ALLOWED:
            return EndpointError(
                f"{shown} cannot create temporary tables: {text};"
                " use a writable server, and GRANT TEMPORARY ON DATABASE to the user"
            )
        if isinstance(error, psycopg.ProgrammingError) and not state:
            return UsageError(f"{shown} is not a usable URL: {text}; {_USE}")
        return EndpointError(f"{shown} cannot be used: {text}")


def _arrow_schema(expression: Table) -> pa.Schema:
    """Return the Arrow schema of an expression, with integers of 64 bits."""
    columns = []
    for name, type_ in expression.schema().items():
        if type_.is_integer():
            columns.append((name, pa.int64()))
        elif type_.is_floating():
            columns.append((name, pa.float64()))
        else:
            columns.append((name, pa.bool_() if type_.is_boolean() else pa.string()))
    return pa.schema(columns)
