"""A small SQLite file in a collector's `state/`, which is recreated if it is damaged."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ...core.state_database import (
    DATABASE_SUFFIXES,
    FULL_SYNC,
    WAL,
    create_private_file,
    open_database,
    transaction,
)
from ...errors import TargetError
from .journal.files import DAMAGED_SUFFIX

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_CHECKED_BYTES = 2**26
"""A file with more bytes is not checked when it is opened; damage is detected when it is used."""
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""The error codes that mean a damaged file. SQLITE_ERROR is one of them: the statements are
correct, so the tables must have been changed."""


class StateFile:
    """An SQLite file for one process, all threads of which may use it."""

    def __init__(
        self, path: Path, schema: str, loss: str, on_loss: Callable[[], None] = lambda: None
    ) -> None:
        """Open or create the file.

        `schema` must be idempotent; `loss` is the log's description of the lost data if the file is
        damaged. Whenever damage is detected, the file is renamed to `<name>.damaged`, reported, and
        recreated; `on_loss` is called before that, and must not use this object. Raises TargetError
        if the file cannot be used.
        """
        self.path, self._on_loss = path, on_loss
        self._schema, self._loss = schema, loss
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self.read("SELECT 1")

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises TargetError if the file cannot be read now."""
        return self._attempt(lambda connection: connection.execute(query, values).fetchall())

    def write(self, *statements: tuple[str, Iterable[Sequence[Any]]]) -> None:
        """Run each statement once per row, all in one transaction, which is on disk when this
        returns.

        Raises TargetError.
        """
        prepared = [(statement, list(rows)) for statement, rows in statements]

        def change(connection: sqlite3.Connection) -> None:
            with transaction(connection, "BEGIN"):
                for statement, rows in prepared:
                    connection.executemany(statement, rows)

        self._attempt(change)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._release()

    def _attempt(self, what: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._lock:
            try:
                try:
                    return what(self._opened())
                except sqlite3.DatabaseError as error:
                    if (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _DAMAGED:
                        raise
                    self._set_aside(error)
                    return what(self._opened())
            except (sqlite3.Error, OSError) as error:
                raise TargetError(f"{self.path} cannot be used: {error}") from None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        create_private_file(self.path)
        connection = open_database(self.path, WAL, FULL_SYNC, is_shared=True)
        try:
            connection.executescript(self._schema)
            if self.path.stat().st_size <= _CHECKED_BYTES:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    error = sqlite3.DatabaseError(verdict)
                    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                    raise error
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: Exception) -> None:
        """Rename the database and its log, because SQLite would replay the log into a new
        database.
        """
        self._on_loss()
        self._release()
        aside = self.path.with_name(self.path.name + DAMAGED_SUFFIX)
        for suffix in DATABASE_SUFFIXES:
            renamed = aside.with_name(aside.name + suffix)
            renamed.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).replace(renamed)
        logger.error("%s is damaged (%s): kept as %s; %s", self.path, error, aside, self._loss)

    def _release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
