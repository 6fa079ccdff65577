"""Assign a session to each span, by the chain of its parents or else by its process and time."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from ...semconv import SESSION
from .index import SpoolIndex

_HANG_ON_SESSIONS = ("epoch", "request")

_TABLES = """
CREATE TABLE session (
    no INTEGER PRIMARY KEY, key BLOB, state TEXT, pid INTEGER, start_ns INTEGER, end_ns INTEGER
);
CREATE TABLE top (no INTEGER PRIMARY KEY, session INTEGER);
CREATE TABLE member (no INTEGER PRIMARY KEY, session INTEGER);
"""
_CLOSED = """
INSERT INTO session (key, state, pid, start_ns, end_ns)
SELECT ended.id, state, span.pid, first_ns, last_ns FROM (
    SELECT id, CASE
            WHEN max(error LIKE 'incomplete:%' OR error LIKE 'killed:%') THEN 'killed'
            WHEN max(error IS NOT NULL) THEN 'failed'
            ELSE 'closed'
        END AS state, min(no) AS first, min(start_ns) AS first_ns, max(end_ns) AS last_ns
    FROM span
    WHERE parent IS NULL AND name = ? AND id IS NOT NULL GROUP BY id
) AS ended JOIN span ON span.no = ended.first ORDER BY ended.id
"""
_OPEN = """
INSERT INTO session (key, state, pid, start_ns, end_ns)
SELECT parent, 'unfinished', pid, min(start_ns), NULL FROM span AS child
WHERE name IN (?, ?) AND parent IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM span WHERE span.id = child.parent)
GROUP BY parent ORDER BY parent
"""
# The topmost recorded spans: those without a parent, and those whose parent is not recorded.
_TOPS = """
SELECT no, coalesce(parent, id), parent, pid, start_ns FROM span AS child
WHERE parent IS NULL OR NOT EXISTS (SELECT 1 FROM span WHERE span.id = child.parent) ORDER BY no
"""
_MEMBERS = """
INSERT OR IGNORE INTO member
WITH RECURSIVE found (no, session) AS (
    SELECT no, session FROM top
    UNION
    SELECT child.no, found.session FROM found
    JOIN span AS parent ON parent.no = found.no
    JOIN span AS child ON child.parent = parent.id
)
SELECT no, session FROM found
"""


def assign_sessions(index: SpoolIndex) -> Sessions:
    """Create and fill the tables `session` and `member` (span number → session number)."""
    index.script(_TABLES)
    index.change(_CLOSED, [(SESSION,)])
    index.change(_OPEN, [_HANG_ON_SESSIONS])
    known = Sessions(index)
    index.change("INSERT INTO top VALUES (?, ?)", known.of_tops(index))
    index.change("INSERT INTO session VALUES (?, NULL, 'none', ?, NULL, NULL)", known.added)
    index.change(_MEMBERS, [()])
    return known


class Sessions:
    """Look up sessions by id, or by process and time."""

    def __init__(self, index: SpoolIndex) -> None:
        self.numbers: dict[bytes, int] = {}
        self.added: list[tuple[int, int | None]] = []
        """(number, pid) of placeholder sessions, one per process with spans without a session."""
        self._by_pid: dict[int | None, list[tuple[int, int, int | None]]] = {}
        self._without: dict[int | None, int] = {}
        self._last = 0
        rows = "SELECT no, key, pid, start_ns, end_ns FROM session ORDER BY start_ns, no"
        for number, key, pid, start_ns, end_ns in index.rows(rows):
            self.numbers[key] = number
            self._by_pid.setdefault(pid, []).append((start_ns or 0, number, end_ns))
            self._last = max(self._last, number)

    def of_tops(self, index: SpoolIndex) -> Iterator[tuple[int, int]]:
        """Yield (span number, session number) for every topmost recorded span."""
        for number, key, parent, pid, start_ns in index.rows(_TOPS):
            is_session = parent is not None or self._is_root(index, number)
            yield number, self.of_top(key if is_session else None, pid, start_ns or 0)

    def of_top(self, key: bytes | None, pid: int | None, start_ns: int) -> int:
        """Return the session with a key, or else that of a process at a time."""
        session = None if key is None else self.numbers.get(key)
        return self._of_process(pid, start_ns) if session is None else session

    @staticmethod
    def _is_root(index: SpoolIndex, number: int) -> bool:
        return bool(index.one("SELECT name = ? FROM span WHERE no = ?", SESSION, number))

    def _of_process(self, pid: int | None, time_ns: int) -> int:
        """Return the process's only session, the session it had open at that time, or a
        placeholder.
        """
        sessions = self._by_pid.get(pid, [])
        if len(sessions) == 1:
            return sessions[0][1]
        place = bisect.bisect_right(sessions, time_ns, key=lambda session: session[0])
        for _, number, end_ns in reversed(sessions[:place]):
            if end_ns is None or end_ns >= time_ns:
                return number
        if pid not in self._without:
            self._last += 1
            self._without[pid] = self._last
            self.added.append((self._last, pid))
        return self._without[pid]
