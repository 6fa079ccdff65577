"""What came before: requests and batches of the last hours, so that none is stored twice.

A client whose acknowledgement was lost sends again, and a collector in between may send what it had
queued after a restart; both bring the same bytes. Entries carry the position of the frame that made
them: a frame that is translated again after a crash is no duplicate of itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from ..errors import TargetError
from .journal_files import Position

_SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (
  key BLOB PRIMARY KEY, at_ns INTEGER NOT NULL, segment INTEGER NOT NULL, offset INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_at ON seen (at_ns);
"""


class Seen:
    """Keys of what came, in a file; for one process."""

    def __init__(self, path: Path) -> None:
        """Raises TargetError where the file cannot be used.

        One that is damaged is set aside: the worst that follows is a duplicate.
        """
        try:
            self._connection = self._open(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise TargetError(f"{path} cannot be opened: {error}") from None
            path.replace(path.with_name(path.name + ".damaged"))
            self._connection = self._open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        path.touch(mode=0o600)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(_SCHEMA)
        connection.execute("PRAGMA quick_check")
        return connection

    def is_known(self, key: bytes, position: Position) -> bool:
        """Whether another frame than the one at `position` brought it before."""
        found = self._connection.execute(
            "SELECT segment, offset FROM seen WHERE key = ?", (key,)
        ).fetchone()
        return found is not None and Position(*found) != position

    def add(self, entries: Iterable[tuple[bytes, int, Position]]) -> None:
        """Remember keys: when they came, ns, and with which frame. Raises TargetError."""
        rows = [(key, at_ns, *position) for key, at_ns, position in entries]
        try:
            with self._connection:
                self._connection.execute("BEGIN")
                self._connection.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise TargetError(f"what came cannot be noted: {error}") from None

    def forget(self, before_ns: int) -> None:
        """Forget what came before."""
        with self._connection:
            self._connection.execute("DELETE FROM seen WHERE at_ns < ?", (before_ns,))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
