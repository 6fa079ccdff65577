"""An embedded SQLite database: one file, in WAL mode."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ....errors import InputError
from ...delivery.errors import MisconfiguredError, RefusedError, StoppedError, UnreachableError
from ...spool.directories import make_private
from ...state_database import FULL_SYNC, WAL, create_private_file, open_database
from .database import Row, quoted
from .url import Location

_BUSY_S = 30.0
"""How long a writer waits for another writer, in seconds."""

_BATCHES = "TraceBatch"

_abandoned: list[sqlite3.Connection] = []
"""In a forked child, the parent's connections: closing them would touch the parent's open files."""

_WRONG = ("unable to open", "readonly", "not a database", "malformed", "no such table", "authoriz")


class SqliteDatabase:
    """A connection to an SQLite file. Implements Database."""

    dialect = "sqlite"
    names = _BATCHES

    def __init__(self, location: Location, *, create: bool) -> None:
        """Open the file; `create` creates it if it does not exist.

        A new file gets mode 0600, and its directory 0700. Without `create`, raises InputError if
        the file does not exist.
        """
        if location.path is None:
            raise ValueError("an SQLite database without a file")
        self._path = path = location.path
        self._is_interrupted = False
        with self._guarded():
            if create:
                _make_private(path)
            elif not path.is_file():
                raise InputError(f"{path} does not exist or is not a file: expected an SQLite file")
            settings = [FULL_SYNC, "cache_size=-32768", "temp_store=MEMORY"]
            if create:
                settings = ["auto_vacuum=INCREMENTAL", WAL, *settings]
            self._connection = open_database(
                path, *settings, busy_s=_BUSY_S, is_shared=True, must_exist=True
            )

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            if self._is_interrupted:
                raise StoppedError(f"stopped before {self._path} received everything")
            yield
        except sqlite3.Error as error:
            raise self._error(error) from None
        except OSError as error:
            what = error.strerror or str(error)
            raise MisconfiguredError(f"{self._path} cannot be opened: {what}") from None

    def _error(self, error: sqlite3.Error) -> Exception:
        text = str(error)
        if self._is_interrupted:
            return StoppedError(f"stopped during a write to {self._path}")
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | sqlite3.InterfaceError):
            return RefusedError(f"{self._path} does not accept the data: {text}")
        if any(words in text for words in _WRONG):
            what = f"{text}: check the path, its permissions, and that it is an SQLite file"
            return MisconfiguredError(f"{self._path} cannot be used: {what}")
        return UnreachableError(f"{self._path} cannot be used now: {text}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block at its end, or none; exclude all other writers."""
        with self._block("BEGIN IMMEDIATE"):
            yield

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything in the block from one snapshot of the database."""
        with self._block("BEGIN"):
            yield

    @contextlib.contextmanager
    def _block(self, begin: str) -> Iterator[None]:
        self.run(begin)
        try:
            yield
            self.run("COMMIT")
        finally:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")

    def exclude_writers(self) -> None:
        """Do nothing, since a write transaction always excludes other writers."""

    def serialize(self) -> None:
        """Do nothing, since a write transaction always excludes other writers."""

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        with self._guarded():
            return self._connection.execute(statement, parameters).fetchall()

    def run(self, statement: str, *parameters: Any) -> int:
        """Execute a statement; return the number of rows that it changed."""
        with self._guarded():
            return self._connection.execute(statement, parameters).rowcount

    def in_clause(self, column: str) -> str:
        """Return the SQL condition that the column's value is in an `array_param` parameter."""
        return f"{column} IN (SELECT value FROM json_each(?))"  # noqa: S608

    def array_param(self, values: Iterable[str] | Iterable[int]) -> Any:
        """Return a parameter for `in_clause`."""
        return json.dumps(list(values))

    def prepare_days(self, created_ns: Collection[int]) -> None:
        """Do nothing: an SQLite file has no partitions."""

    def drop_days(self, before_ns: int) -> int:  # noqa: ARG002
        """Return 0: an SQLite file has no partitions."""
        return 0

    def add(self, columns: Sequence[str], rows: Sequence[Row]) -> list[int | None]:
        """Insert batches one by one; return each `batchKey`, or None if it already exists."""
        statement = f"{_insert(_BATCHES, columns)} ON CONFLICT DO NOTHING"
        keys: list[int | None] = []
        with self._guarded():
            for row in rows:
                cursor = self._connection.execute(statement, row)
                keys.append(cursor.lastrowid if cursor.rowcount else None)
        return keys

    def claim(self, table: str, column: str, rows: Sequence[tuple[bytes, int]]) -> set[bytes]:
        """Insert the (digest, `batchKey`) pairs whose digest is new; return these digests."""
        statement = f"{_insert(table, (column, 'batchKey'))} ON CONFLICT DO NOTHING"
        with self._guarded():
            execute = self._connection.execute
            return {row[0] for row in rows if execute(statement, row).rowcount}

    def bulk_insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert many rows."""
        with self._guarded():
            self._connection.executemany(_insert(table, columns), rows)

    def script(self, text: str) -> None:
        """Execute several statements, without committing first as `executescript` does."""
        statement = ""
        for line in text.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self.run(statement)
                statement = ""

    def has_table(self, name: str) -> bool:
        """Return whether a table of that name exists."""
        statement = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(self.rows(statement, name))

    def shrink(self) -> None:
        """Return freed pages to the file system, and checkpoint the WAL."""
        with self._guarded():
            # `execute` would stop after the first page.
            self._connection.executescript(
                "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(PASSIVE);"
            )

    def limit_statements(self, seconds: float) -> None:
        """Do nothing: the wait for another writer has its own limit."""

    def interrupt(self) -> None:
        """Cancel the call in progress in another thread, and refuse later calls."""
        self._is_interrupted = True
        self._connection.interrupt()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def abandon(self) -> None:
        """In a forked child: drop the connection without closing it."""
        _abandoned.append(self._connection)


def _insert(table: str, columns: Sequence[str]) -> str:
    # Table and column names are constants of this package.
    marks = ", ".join("?" * len(columns))
    return f'INSERT INTO "{table}" ({quoted(columns)}) VALUES ({marks})'  # noqa: S608


def _make_private(path: Path) -> None:
    make_private(path.parent)
    create_private_file(path)
