"""An SQLite index of the scopes that other batches refer to; it finds a scope's ancestors."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from functools import lru_cache

from .batch_outline import Ancestor, Row, ScopePosition, SpanOutline, position_of

_MOST_KEPT = 10_000
"""The maximum number of resolved scopes in memory."""
_KEPT_EVERY = 64
"""On a walk up the parents, the position of every Nth scope is cached."""


class ScopeIndex:
    """Scopes by id, each with its parent, and the sessions of processes by time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        """Use the tables of `db`, which the caller creates."""
        self._db = db
        self._pending = dict.fromkeys(row[0] for row in db.execute("SELECT id FROM referred"))
        """Scopes that batches refer to and that are not recorded yet, oldest first."""
        self._sessions: dict[str, list[tuple[int, int, str]]] = {}
        self.resolve = lru_cache(maxsize=_MOST_KEPT)(self._resolve)
        self._resolved: dict[str, ScopePosition] = {}
        """The positions of some ancestors of resolved scopes, to avoid walking a chain again."""

    def _add_chain(self, span: SpanOutline, index: Mapping[str, SpanOutline]) -> SpanOutline | None:
        """Add a scope and all of its ancestors in the batch, each as a row with its direct parent.

        The size of the index therefore stays proportional to the number of scopes, however deeply
        they are nested. Returns the topmost scope if it is new.
        """
        chain: list[SpanOutline] = []
        seen: set[str] = set()
        current: SpanOutline | None = span
        noted: Row | None = None
        while current is not None and current.id not in seen:
            noted = self._node(current.id)
            if noted is not None:
                break
            seen.add(current.id)
            chain.append(current)
            parent_id = current.parent_id
            current = index.get(parent_id) if parent_id is not None else None
        top_start = noted[9] if noted is not None else str(chain[-1].start_ns)
        for scope in chain:
            self._add_node(scope, top_start)
        return chain[-1] if noted is None else None

    def _add_node(self, span: SpanOutline, top_start: str) -> None:
        """Add the row of one scope; `top_start` is the start of its topmost ancestor."""
        path = json.dumps([(span.name, span.index)])
        start = str(span.start_ns)
        row = (span.id, span.parent_id, 1, span.id, start, None, None, span.is_session())
        self._db.execute(
            "INSERT OR IGNORE INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, str(span.pid), top_start, path),
        )
        if span.id in self._pending:
            del self._pending[span.id]
            self._db.execute("DELETE FROM referred WHERE id = ?", (span.id,))

    def _resolve(self, some_id: str) -> ScopePosition:
        seen: set[str] = set()
        rows: list[Row] = []
        current = some_id
        position: ScopePosition | None = None
        while (row := self._node(current)) is not None and current not in seen:
            seen.add(current)
            rows.append(row)
            if row[7] or row[1] is None:
                break
            current = row[1]
            position = self._resolved.get(current)
            if position is not None:
                break
        if position is None and not (rows and (rows[-1][7] or rows[-1][1] is None)):
            if current in seen:
                rows = _without_circle(rows, current)
                position = ScopePosition(rows[-1][0], 0, None)
            else:
                position = self._unknown(current)
        for number, row in enumerate(reversed(rows)):
            position = self._placed(row, position)
            if number % _KEPT_EVERY == 0:
                self._keep(row[0], position)
        return position or ScopePosition(some_id, 0, None)

    def _keep(self, some_id: str, position: ScopePosition) -> None:
        if len(self._resolved) >= _MOST_KEPT:
            self._resolved.clear()
        self._resolved[some_id] = position

    def forget_resolved(self) -> None:
        """Drop the cached positions, because scopes added since then may change them."""
        self.resolve.cache_clear()
        self._resolved.clear()

    def _node(self, some_id: str) -> Row | None:
        row = self._db.execute("SELECT * FROM node WHERE id = ?", (some_id,)).fetchone()
        return tuple(row) if row is not None else None

    def _unknown(self, some_id: str) -> ScopePosition:
        """Place a scope that was never recorded.

        The scope is a session if epochs or requests are its children. Otherwise it belongs to the
        session of its child's process. If that process has no session, the scope itself counts as a
        session, so that its descendants stay together.
        """
        if self._db.execute("SELECT 1 FROM evidence WHERE id = ?", (some_id,)).fetchone():
            return ScopePosition(some_id, 0, None)
        row = self._db.execute(
            "SELECT pid, start FROM referred WHERE id = ?", (some_id,)
        ).fetchone()
        if row is not None and row[0] is not None:
            session = self.session_at(row[0], int(row[1]))
            if session is not None:
                return ScopePosition(session, 1, None)
        return ScopePosition(some_id, 0, None)

    def _placed(self, row: Row, above: ScopePosition | None) -> ScopePosition:
        if above is None and not row[7]:
            above = self.without_parent(row[3], row[8], int(row[4]))
        return position_of(row, above)

    def session_at(self, pid: str, when_ns: int) -> str | None:
        """Return the session of a process that was open at a time (the latest if several were)."""
        open_then = [s for s in self._sessions.get(pid, ()) if s[0] <= when_ns <= s[1]]
        return max(open_then)[2] if open_then else None

    def without_parent(self, some_id: str, pid: str, start_ns: int) -> ScopePosition:
        """Return the position under which to place a root scope that is not a session.

        This is the session that was open in the scope's process at that time or, if there was none,
        a session with the scope's own id.
        """
        session = self.session_at(pid, start_ns)
        return ScopePosition(session or some_id, 0, None)

    def _open_roots(self, some_id: str, seen: set[str]) -> Iterator[str]:
        """Yield the nearest unrecorded ancestor of `some_id`, unless its chain is in `seen`."""
        while some_id not in seen:
            seen.add(some_id)
            row = self._node(some_id)
            if row is None:
                yield some_id
                return
            if row[1] is None:
                return
            some_id = row[1]

    def lineage(self, some_id: str) -> Iterator[tuple[str, list[Ancestor]]]:
        """Yield each recorded scope from `some_id` up to its session: its id, name and number."""
        seen = set()
        current: str | None = some_id
        while current is not None and current not in seen:
            seen.add(current)
            row = self._node(current)
            if row is None:
                return
            yield current, [Ancestor(*entry) for entry in json.loads(row[10])]
            current = row[1]


def _without_circle(rows: list[Row], entry: str) -> list[Row]:
    """Cut a cycle of parents, which begins and ends at `entry`, after its smallest id.

    A cycle has no topmost scope. The scope with the smallest id counts as the topmost one, so that
    the result does not depend on the scope at which the walk begins.
    """
    start = next(number for number, row in enumerate(rows) if row[0] == entry)
    smallest = min(range(start, len(rows)), key=lambda number: rows[number][0])
    return rows[: smallest + 1]
