"""PostgreSQL, through psycopg 3."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from ....errors import MissingExtraError, UsageError
from ...delivery.errors import MisconfiguredError, RefusedError, StoppedError, UnreachableError
from ...durations import DAY_NS
from ..otlp.transport import without_secrets
from .database import KEYS_PER_DAY, Row, quoted
from .days import Days
from .url import Location

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as _error:  # the driver, or the library that it needs, is not installed
    raise MissingExtraError("postgres", "storage in PostgreSQL") from _error

_DEFAULTS: dict[str, Any] = {
    "application_name": "cirron-otel",
    "connect_timeout": "10",
    # These settings detect a server that disappears silently in about a minute, not in hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""Default connection parameters, which the URL may override."""
_LOCK = 0x6369_7272_6F6E
"""The key of the advisory lock that `serialize` takes."""

_MIGRATION_LOCK = 0x6369_7272_6F6D
"""The key of the advisory lock that `exclude_writers` takes."""
_TABLES = '"TraceBatch", "TraceSpan", "TraceMark", "TraceSnapshot"'
_EXCLUSION_WAIT = "10s"
"""How long `exclude_writers` waits for the tables, while all later writers wait."""

_abandoned: list[Any] = []

_NO_ENTRY = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password")
"""Parts of messages that report a refused connection: the driver gives no SQLSTATE for it."""
# SQLSTATEs and their classes: Appendix A of PostgreSQL's documentation.
_NOT_ALLOWED = ("28", "3D", "3F", "42501")
"""The SQLSTATEs of authorization, unknown database, unknown schema and insufficient privilege."""
_EXISTS = ("42P07", "42710", "42723", "42P06")
"""The SQLSTATEs of a table, another object, a function or a schema whose name already exists."""
_OTHER_TABLES = ("42",)
"""The class of any other mismatch of statement and schema, such as an unknown column."""
_NO_LOCKS = "53200"
"""The SQLSTATE if memory is exhausted, which on a server is nearly always that of the locks."""
_NO_PARTITION = "ExecFindPartition"
"""The function of the server that finds the partition of a row. The SQLSTATE is that of a violated
constraint."""
_REFUSED = ("22", "23", "54")
"""The classes of invalid data, violated constraints and exceeded limits."""


def connected(location: Location, *, autocommit: bool = True) -> psycopg.Connection[Any]:
    """Return a new connection. Raises psycopg.Error."""
    return psycopg.connect(
        make_conninfo(**(_DEFAULTS | conninfo_to_dict(location.url))),
        autocommit=autocommit,
        client_encoding="UTF8",
        # A connection pool may use a different connection for each transaction, without the
        # prepared statements.
        prepare_threshold=None,
    )


class PostgresDatabase:
    """A connection to a PostgreSQL database. Implements Database."""

    dialect = "postgresql"
    names = "TraceName"

    def __init__(self, location: Location, *, create: bool) -> None:  # noqa: ARG002
        """Connect to the database, which must exist: `create` has no effect."""
        self._location = location
        self._is_interrupted = False
        self._limit_s: float | None = None
        self._since: float | None = None
        """When the statement in progress began, monotonic seconds."""
        self._is_late = False
        """Whether the connection was closed because a statement took too long."""
        self._is_closed = threading.Event()
        self._days = Days(self)
        with self._guarded():
            self._connection = connected(location)
            # `serialize` must see what other transactions have committed meanwhile.
            self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            if self._is_interrupted:
                raise StoppedError(f"stopped before {self._location.shown} received everything")
            yield
        except psycopg.Error as error:
            raise self._error(error) from None

    @contextlib.contextmanager
    def _statement(self) -> Iterator[None]:
        """Guard one statement, which `limit_statements` may end."""
        with self._guarded():
            self._since = time.monotonic()
            try:
                yield
            finally:
                self._since = None

    def limit_statements(self, seconds: float) -> None:
        """Close the connection if a later statement takes longer than `seconds`.

        The server is not asked to cancel it: the connection may be dead without any sign of it, for
        example after a failover behind a proxy.
        """
        self._limit_s = seconds
        threading.Thread(target=self._watch, args=(seconds,), daemon=True).start()

    def _watch(self, seconds: float) -> None:
        while not self._is_closed.wait(seconds / 10):
            since = self._since
            if since is not None and time.monotonic() - since > seconds:
                self._is_late = True
                with contextlib.suppress(OSError, psycopg.Error):
                    descriptor = os.dup(self._connection.fileno())
                    with socket.socket(fileno=descriptor) as connection:
                        connection.shutdown(socket.SHUT_RDWR)
                return

    def _error(self, error: psycopg.Error) -> Exception:
        shown, state = self._location.shown, error.sqlstate or ""
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = without_secrets(lines[0], list(self._location.secrets))
        if self._is_interrupted:
            return StoppedError(f"stopped during a write to {shown}")
        if self._is_late:
            what = f"{shown} did not answer within {self._limit_s:g} s: the connection is closed"
            return UnreachableError(what, status="no answer")
        if error.diag.source_function == _NO_PARTITION:
            what = f"{text}: another program removed it; delete the day from TraceDay"
            return MisconfiguredError(f"{shown} cannot be used: {what}", status=state)
        if state == _NO_LOCKS:
            what = f'{text}: increase max_locks_per_transaction (docs/storage.md, "Days")'
            return UnreachableError(f"{shown} cannot be used now: {what}", status=state)
        if state.startswith(_REFUSED):
            return RefusedError(f"{shown} does not accept the data: {text}", status=state)
        if isinstance(error, psycopg.ProgrammingError) and not state:
            return UsageError(f"{shown} is not a usable URL: {text}")
        if state.startswith(_NOT_ALLOWED) or (
            not state and any(words in str(error) for words in _NO_ENTRY)
        ):
            what = f"{text}: check the user, the password, the database and its permissions"
            return MisconfiguredError(f"{shown} cannot be used: {what}", status=state)
        if state.startswith(_OTHER_TABLES) and state not in _EXISTS:
            what = f"{text}: check the search path, and that no other program changed the tables"
            return MisconfiguredError(f"{shown} cannot be used: {what}", status=state)
        return UnreachableError(f"{shown} cannot be used now: {text}", status=state or "no answer")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block at its end; roll them back if the block raises."""
        with self._ended(), self._connection.transaction():
            try:
                yield
            finally:
                self._since = time.monotonic()

    @contextlib.contextmanager
    def _ended(self) -> Iterator[None]:
        """Guard a transaction, the end of which is a statement."""
        with self._guarded():
            try:
                yield
            finally:
                self._since = None

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything in the block from one snapshot of the database."""
        with self._guarded(), self._connection.transaction():
            self.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    def exclude_writers(self) -> None:
        """Lock the tables, if they exist, until the transaction ends."""
        self.run("SELECT pg_advisory_xact_lock(?)", _MIGRATION_LOCK)
        if self.has_table("TraceBatch"):
            self.run(f"SET LOCAL lock_timeout = '{_EXCLUSION_WAIT}'")
            self.run(f"LOCK TABLE {_TABLES} IN ACCESS EXCLUSIVE MODE")
            self.run("SET LOCAL lock_timeout TO DEFAULT")

    def serialize(self) -> None:
        """Take the advisory lock of this package until the transaction ends."""
        self.run("SELECT pg_advisory_xact_lock(?)", _LOCK)

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with self._statement():
            return self._connection.execute(_marked(statement), parameters).fetchall()

    def run(self, statement: str, *parameters: Any) -> int:
        """Execute a statement; return the number of rows that it changed."""
        with self._statement():
            return self._connection.execute(_marked(statement), parameters).rowcount

    def in_clause(self, column: str) -> str:
        """Return the SQL condition that the column's value is in an `array_param` parameter."""
        return f"{column} = ANY(?)"

    def array_param(self, values: Iterable[str] | Iterable[int]) -> Any:
        """Return a parameter for `in_clause`."""
        return list(values)

    def prepare_days(self, created_ns: Collection[int]) -> None:
        """Create the partitions for batches of these times (Unix ns), if they are missing."""
        self._days.prepare(created_ns)

    def drop_days(self, before_ns: int) -> int:
        """Remove the partitions of days before a time; return the number of batches."""
        return self._days.drop(before_ns)

    def add(self, columns: Sequence[str], rows: Sequence[Row]) -> list[int | None]:
        """Insert batches one by one; return each `batchKey`, or None if the batch already exists.

        The key contains the batch's day if that has a partition.
        """
        created = columns.index("createdNs")
        days = self._days.lock({row[created] for row in rows})
        marks = ", ".join(["%s"] * len(columns))
        statement = (
            f'INSERT INTO "TraceBatch" ("batchKey", {quoted(columns)})'  # noqa: S608
            f" VALUES (%s + nextval('\"TraceBatch_number\"'), {marks})"
            ' ON CONFLICT DO NOTHING RETURNING "batchKey"'
        )
        values = []
        for row in rows:
            day = row[created] // DAY_NS
            values.append((day * KEYS_PER_DAY if day in days else 0, *row))
        keys: list[int | None] = []
        with self._statement(), self._connection.cursor() as cursor:
            cursor.executemany(statement.encode(), values, returning=True)
            for _ in rows:
                key = cursor.fetchone()
                keys.append(key[0] if key else None)
                cursor.nextset()
        return keys

    def claim(self, table: str, column: str, rows: Sequence[tuple[bytes, int]]) -> set[bytes]:
        """Insert the (digest, `batchKey`) pairs whose digest is new; return these digests."""
        statement = (
            f'INSERT INTO "{table}" ({quoted((column, "batchKey"))})'  # noqa: S608
            " SELECT * FROM unnest(?::bytea[], ?::bigint[])"
            f' ON CONFLICT DO NOTHING RETURNING "{column}"'
        )
        digests, keys = [row[0] for row in rows], [row[1] for row in rows]
        return {bytes(new_digest) for (new_digest,) in self.rows(statement, digests, keys)}

    def bulk_insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert many rows with COPY."""
        statement = f'COPY "{table}" ({quoted(columns)}) FROM STDIN'
        with (
            self._statement(),
            self._connection.cursor() as cursor,
            cursor.copy(statement.encode()) as copy,
        ):
            for row in rows:
                copy.write_row(row)
                self._since = time.monotonic()

    def script(self, text: str) -> None:
        """Execute several statements in the open transaction."""
        with self._statement():
            self._connection.execute(text.encode())

    def has_table(self, name: str) -> bool:
        """Return whether a table of that name exists."""
        # to_regclass would read the catalog cache, which may still lack a table after `serialize`
        # has waited for the writer that created it.
        statement = (
            "SELECT 1 FROM pg_catalog.pg_class WHERE relname = ? AND relkind IN ('r', 'p')"
            " AND pg_catalog.pg_table_is_visible(oid)"
        )
        return bool(self.rows(statement, name))

    def shrink(self) -> None:
        """Do nothing: the server's autovacuum frees space."""

    def interrupt(self) -> None:
        """Cancel the call in progress in another thread, and refuse later calls."""
        self._is_interrupted = True
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=2.0)

    def close(self) -> None:
        """Close the connection."""
        self._is_closed.set()
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def abandon(self) -> None:
        """In a forked child: drop the connection without closing it."""
        _abandoned.append(self._connection)


@lru_cache
def _marked(statement: str) -> bytes:
    """Return a statement with the driver's placeholders."""
    return statement.replace("?", "%s").encode()
