"""Open SQLite files: the one place that calls `sqlite3.connect`.

Connections are in autocommit mode: a transaction begins with an explicit `BEGIN`.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DATABASE_SUFFIXES: Final = ("", "-wal", "-shm")
"""The name suffixes of a database in WAL mode, its log, and the log's index. Move or remove the
three files together: SQLite would replay a leftover log into a new database of the same name."""

WAL: Final = "journal_mode=WAL"
"""Readers and one writer do not block each other."""
FULL_SYNC: Final = "synchronous=FULL"
"""A commit survives a power cut. In WAL mode, `synchronous=NORMAL` does not guarantee that."""
TEMPORARY: Final = ("journal_mode=OFF", "synchronous=OFF", "cache_size=-16000", "temp_store=FILE")
"""The settings of a file that is removed when its writer ends: no journal, 16 MB of cache."""
SQLITE_DEFAULT_BUSY_S: Final = 5.0
"""The default of Python's sqlite3 module, seconds."""
_PAUSE_S: Final = 0.01


def create_private_file(path: Path) -> None:
    """Create an empty file of mode 0600 if there is none: SQLite itself would apply the umask.

    SQLite gives the `-wal` and `-shm` files the mode of the database. Raises OSError.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def open_database(
    path: str | Path,
    *settings: str,
    busy_s: float = SQLITE_DEFAULT_BUSY_S,
    is_shared: bool = False,
    must_exist: bool = False,
    mode: str | None = None,
) -> sqlite3.Connection:
    """Open the database at `path`, which is created if it does not exist.

    `settings` are pragmas, which run in this order. A writer waits at most `busy_s` seconds for
    another writer. `is_shared` allows use from several threads, which the caller must serialize.
    With `must_exist`, a missing file is an error. `mode` is the query of SQLite's URI, such as
    `mode=ro`, for a file of another program. Raises sqlite3.Error.
    """
    mode = mode or ("mode=rw" if must_exist else None)
    connection = sqlite3.connect(
        path if mode is None else f"{Path(path).absolute().as_uri()}?{mode}",
        uri=mode is not None,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=not is_shared,
    )
    try:
        for setting in settings:
            _set(connection, setting, time.monotonic() + busy_s)
    except BaseException:
        connection.close()
        raise
    return connection


def _set(connection: sqlite3.Connection, setting: str, deadline: float) -> None:
    """Run a pragma. The switch to WAL fails at once while another connection writes: try again."""
    while True:
        try:
            connection.execute(f"PRAGMA {setting}")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commit when the block ends, or roll back if it raises. Raises sqlite3.Error."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
