"""Find the scope of a spool that was open in a process and a thread at a time (`--join`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from ... import exactjson
from ...errors import InputError
from ...semconv import SESSION
from ..spool.reader import SpoolReader
from ..state_database import TEMPORARY, open_database

_TABLE: Final = (
    "CREATE TABLE scope (id TEXT PRIMARY KEY, parent TEXT, pid INTEGER, thread INTEGER,"
    " start INTEGER, end INTEGER, is_session INTEGER) WITHOUT ROWID"
)
_INDEX: Final = "CREATE INDEX by_time ON scope (pid, thread, start)"
_MAX_DEPTH: Final = 100
_INT64: Final = range(-(2**63), 2**63)


class JoinedScope(NamedTuple):
    """A scope of the other spool, and its session."""

    id: str
    session: str


class ScopeTimes:
    """The times of all scopes of a spool, in a temporary file."""

    def __init__(self, spool: str | os.PathLike[str], folder: Path) -> None:
        """Read the spool; use a temporary file in `folder`.

        Raises InputError if there is no spool, and sqlite3.Error.
        """
        self._database = open_database(folder / "joined.sqlite", *TEMPORARY)
        self._database.execute(_TABLE)
        self._database.execute("BEGIN")
        count = 0
        for file in SpoolReader(spool):
            batch = exactjson.loads(file.data)
            spans = batch.get("spans") or ()
            rows = [row for span in spans if (row := _row_of(span)) is not None]
            count += len(rows)
            self._database.executemany("INSERT OR IGNORE INTO scope VALUES (?,?,?,?,?,?,?)", rows)
        if not count:
            self.close()
            raise InputError(f"{os.fspath(spool)} contains no scope: expected the spool of a run")
        self._database.execute(_INDEX)
        query = "SELECT DISTINCT pid, thread FROM scope WHERE thread IS NOT NULL AND NOT is_session"
        self._threads: dict[int, list[int]] = {}
        for pid, thread in self._database.execute(query).fetchall():
            self._threads.setdefault(pid, []).append(thread)

    def close(self) -> None:
        """Close the temporary file, which the owner of its folder removes."""
        self._database.close()

    def at(self, pid: int, thread_id: int | None, time_ns: int) -> JoinedScope | None:
        """Return the innermost scope that was open, or the process's session; None if neither was.

        Without a thread, the scope of the only thread that has an open one is returned, and the
        session if several threads have one.
        """
        session = self._session(pid, time_ns)
        if session is None:
            return None
        if thread_id is not None:
            found = self._innermost(pid, thread_id, time_ns)
        else:
            threads = self._threads.get(pid, ())
            open_scopes = [self._innermost(pid, each, time_ns) for each in threads]
            known = [each for each in open_scopes if each is not None]
            found = known[0] if len(known) == 1 else None
        return JoinedScope(found or session, session)

    def _session(self, pid: int, time_ns: int) -> str | None:
        query = (
            "SELECT id FROM scope WHERE pid = ? AND is_session AND start <= ? AND end >= ?"
            " ORDER BY start DESC LIMIT 1"
        )
        if pid not in _INT64:
            return None
        row = self._database.execute(query, (pid, time_ns, time_ns)).fetchone()
        return None if row is None else str(row[0])

    def session_during(self, pid: int, first_ns: int, last_ns: int) -> JoinedScope | None:
        """Return the first session of a process that was open at some time from first to last."""
        query = (
            "SELECT id FROM scope WHERE pid = ? AND is_session AND start <= ? AND end >= ?"
            " ORDER BY start LIMIT 1"
        )
        if pid not in _INT64:
            return None
        row = self._database.execute(query, (pid, last_ns, first_ns)).fetchone()
        return None if row is None else JoinedScope(str(row[0]), str(row[0]))

    def _innermost(self, pid: int, thread_id: int, time_ns: int) -> str | None:
        """Return the scope of a thread that started last, or its nearest ancestor that is open."""
        if thread_id not in _INT64:
            return None
        query = (
            "SELECT id, parent, end, is_session FROM scope WHERE pid = ? AND thread = ?"
            " AND start <= ? ORDER BY start DESC, end LIMIT 1"
        )
        row = self._database.execute(query, (pid, thread_id, time_ns)).fetchone()
        for _ in range(_MAX_DEPTH):
            if row is None or row[3]:
                return None
            if row[2] >= time_ns:
                return str(row[0])
            query = "SELECT id, parent, end, is_session FROM scope WHERE id = ?"
            row = self._database.execute(query, (row[1],)).fetchone()
        return None


def _row_of(span: object) -> tuple[object, ...] | None:
    if not isinstance(span, dict):
        return None
    numbers = [span.get(key) for key in ("pid", "thread_id", "start_ns", "end_ns")]
    if any(type(each) is not int or each not in _INT64 for each in numbers if each is not None):
        return None
    if numbers[0] is None or numbers[2] is None or numbers[3] is None:
        return None
    is_session = span.get("name") == SESSION and span.get("parent_id") is None
    return (span.get("id"), span.get("parent_id"), *numbers, is_session)
