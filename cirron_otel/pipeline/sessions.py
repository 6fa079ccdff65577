"""Which session a record belongs to, and which segment, for spools whose records do not say.

This project's SDK says both in every batch; such batches are only looked at for the scopes that
others refer to.

A batch of cirron-sdk's does not name its session, and a scope's parent is often still open when the
scope is sealed. So a spool is read twice before it is converted: once to find the scopes that other
batches refer to, once to count records into segments. What is found stands in an SQLite file, so
that memory does not grow with the spool and worker processes can look things up.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from ..ids import trace_id_for
from ..translator.placement import Place, Plan
from ..translator.typed import TypedSpan
from .light import LightBatch, LightSpan, is_users
from .segments import SEGMENT_SCHEMA, Segmenter
from .standing import Ancestor, Row, Seen, Standing, chain_of, standing_of

_EPOCH = "epoch"
_TOP_NAMES = (_EPOCH, "request")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
  id TEXT PRIMARY KEY, parent TEXT, rel INTEGER, top TEXT, top_start TEXT,
  second TEXT, second_start TEXT, is_session INTEGER, pid TEXT, start TEXT, path TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS referred (id TEXT PRIMARY KEY, pid TEXT, start TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evidence (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, pid TEXT, start TEXT, end TEXT);
CREATE TABLE IF NOT EXISTS batch (name BLOB PRIMARY KEY, outside TEXT, records INTEGER)
  WITHOUT ROWID;
"""


class SessionIndex:
    """What is known about the sessions of a spool, in an SQLite file."""

    def __init__(self, path: str | Path = ":memory:", *, durable: bool = False) -> None:
        """Open or make the index at `path`; `durable` for one that outlives its process."""
        self.path = str(path)
        self._db = sqlite3.connect(self.path, isolation_level=None)
        journal = "PRAGMA journal_mode=WAL;" if durable else "PRAGMA journal_mode=OFF;"
        self._db.executescript(journal + "PRAGMA synchronous=OFF;" + _SCHEMA + SEGMENT_SCHEMA)
        self._pending = dict.fromkeys(row[0] for row in self._db.execute("SELECT id FROM referred"))
        """Scopes that batches refer to and that are not recorded yet, the oldest first."""
        self._unplaced: set[str] = set()
        """Of these, those that no scope of a known process has referred to yet."""
        self._db.execute("BEGIN")
        self._sessions: dict[str, list[tuple[int, int, str]]] = {}
        self._load()
        self._segments = Segmenter(self._db)
        self.resolve = lru_cache(maxsize=10_000)(self._resolve)

    def _load(self) -> None:
        rows = self._db.execute("SELECT pid, start, end, id FROM session ORDER BY id").fetchall()
        for pid, start, end, session in rows:
            self._sessions.setdefault(pid, []).append((int(start), int(end), session))

    def commit(self) -> None:
        """Make what was added visible to others that open the file."""
        self._segments.save()
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")

    def close(self, *, commit: bool = True) -> None:
        """Close the file; `commit=False` forgets what was added since the last commit."""
        if commit:
            self.commit()
        self._db.close()

    # --- first reading: the scopes that other batches refer to ----------------------------------

    def observe(self, batch: LightBatch, name: str = "") -> None:
        """Take a batch in the order of its file's name; `name` is for `count_all`."""
        ids = {span.id for span in batch.spans}
        parents = {span.parent_id for span in batch.spans}
        outside = parents - ids
        refs = {ref.span_id for ref in (*batch.marks, *batch.snapshots)} - ids
        for span in batch.spans if outside else ():
            parent = span.parent_id
            if parent in outside:
                if parent is None:
                    if span.is_session():
                        self._add_session(span)
                    continue
                self._refer(parent, span)
                if span.name in _TOP_NAMES:
                    self._db.execute("INSERT OR IGNORE INTO evidence VALUES (?)", (parent,))
        for ref in refs:
            self._refer(ref, None)
        if name and batch.session is None:
            self._note(name, batch, (outside | refs))
        # Epochs are kept unasked: a batch that comes after its epoch's is decided at once.
        found = {span.id for span in batch.spans if span.name == _EPOCH}
        self._add_nodes(batch, found | ids & self._pending.keys())

    def _add_nodes(self, batch: LightBatch, found: set[str]) -> None:
        """Note where the scopes `found` of a batch are."""
        if found:
            index = {span.id: span for span in batch.spans}
            for some_id in found:
                self._add_node(index[some_id], index)

    def _note(self, name: str, batch: LightBatch, outside: set[str | None]) -> None:
        alone = outside and not outside & {None, "", "root"}
        told = json.dumps(sorted(str(some_id) for some_id in outside)) if alone else ""
        records = len(batch.spans) + len(batch.snapshots) + sum(map(is_users, batch.marks))
        row = (_sortable(name), told, records)
        self._db.execute("REPLACE INTO batch VALUES (?, ?, ?)", row)

    def look_again(self, batches: Callable[[], Iterable[LightBatch]]) -> None:
        """Find scopes that were recorded before the batches that refer to them."""
        if not self._pending:
            return
        for batch in batches():
            index: dict[str, LightSpan] | None = None
            for span in batch.spans:
                if span.id in self._pending:
                    index = index or {s.id: s for s in batch.spans}
                    self._add_node(span, index)
                    if span.parent_id is not None and span.parent_id not in index:
                        self._refer(span.parent_id, span)

    def _refer(self, some_id: str, child: LightSpan | None) -> None:
        if some_id in self._pending:
            if child is not None and some_id in self._unplaced:
                self._unplaced.discard(some_id)
                row = (str(child.pid), str(child.start_ns), some_id)
                self._db.execute("UPDATE referred SET pid = ?, start = ? WHERE id = ?", row)
            return
        if not some_id or some_id == "root":
            return
        if self._db.execute("SELECT 1 FROM node WHERE id = ?", (some_id,)).fetchone():
            return
        self._pending[some_id] = None
        if child is None:
            self._unplaced.add(some_id)
        pid, start = (str(child.pid), str(child.start_ns)) if child is not None else (None, None)
        self._db.execute("INSERT OR IGNORE INTO referred VALUES (?, ?, ?)", (some_id, pid, start))

    def _add_session(self, span: LightSpan) -> None:
        row = (span.id, str(span.pid), str(span.start_ns), str(span.end_ns))
        if self._db.execute("INSERT OR IGNORE INTO session VALUES (?, ?, ?, ?)", row).rowcount:
            entry = (span.start_ns, span.end_ns, span.id)
            self._sessions.setdefault(str(span.pid), []).append(entry)

    def _add_node(self, span: LightSpan, index: dict[str, LightSpan]) -> None:
        chain = chain_of(span, index)
        top = chain[-1]
        second = chain[-2] if len(chain) > 1 else None
        path = json.dumps([(s.name, s.index) for s in chain])
        self._db.execute(
            "INSERT OR IGNORE INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                span.id,
                top.parent_id,
                len(chain),
                top.id,
                str(top.start_ns),
                second.id if second else None,
                str(second.start_ns) if second else None,
                top.is_session(),
                str(top.pid),
                str(top.start_ns),
                path,
            ),
        )
        self._pending.pop(span.id, None)
        self._unplaced.discard(span.id)
        self._db.execute("DELETE FROM referred WHERE id = ?", (span.id,))

    # --- second reading: segments ---------------------------------------------------------------

    def count(self, batch: LightBatch) -> None:
        """Count a batch's records into segments, in the order of its file's name.

        The records of a batch that names its session say their traces themselves.
        """
        if batch.session is None:
            index = {span.id: span for span in batch.spans}
            self._segments.count(batch, self.standings(batch, index), self.resolve)

    def count_all(self, read: Callable[[str], LightBatch | None]) -> None:
        """Count the batches that were observed by name; `read` gives one again where it must.

        A batch of one session in which no segment can open needs no second look.
        """
        for name, outside, records in self._observed():
            if outside and self._counted_at_once(json.loads(outside), records):
                continue
            batch = read(name)
            if batch is not None:
                self.count(batch)

    def _observed(self) -> Iterator[tuple[str, str, int]]:
        """The batches in order, a page at a time: counting writes between them."""
        last = b""
        while True:
            page = self._db.execute(
                "SELECT name, outside, records FROM batch WHERE name > ? ORDER BY name LIMIT 1000",
                (last,),
            ).fetchall()
            if not page:
                return
            for name, outside, records in page:
                yield name.decode("utf-8", "surrogatepass"), outside, records
            last = page[-1][0]

    def _counted_at_once(self, outside: list[str], records: int) -> bool:
        sessions = {self.resolve(some_id).session for some_id in outside}
        return len(sessions) == 1 and self._segments.count_at_once(sessions.pop(), records)

    # --- answers --------------------------------------------------------------------------------

    def _resolve(self, some_id: str) -> Standing:
        seen = set()
        rows = []
        current = some_id
        while (row := self._node(current)) is not None and current not in seen:
            seen.add(current)
            rows.append(row)
            if row[7] or row[1] is None:
                break
            current = row[1]
        standing = None if rows and (rows[-1][7] or rows[-1][1] is None) else self._unknown(current)
        for row in reversed(rows):
            standing = self._placed(row, standing)
        return standing or Standing(some_id, 0, None)

    def _node(self, some_id: str) -> Row | None:
        row = self._db.execute("SELECT * FROM node WHERE id = ?", (some_id,)).fetchone()
        return tuple(row) if row is not None else None

    def _unknown(self, some_id: str) -> Standing:
        """A scope that was never recorded: a session if epochs or requests hang on it, else in
        the session of its child's process; where there is none, what hangs on it stays together.
        """
        if self._db.execute("SELECT 1 FROM evidence WHERE id = ?", (some_id,)).fetchone():
            return Standing(some_id, 0, None)
        row = self._db.execute(
            "SELECT pid, start FROM referred WHERE id = ?", (some_id,)
        ).fetchone()
        if row is not None and row[0] is not None:
            session = self.session_at(row[0], int(row[1]))
            if session is not None:
                return Standing(session, 1, None)
        return Standing(some_id, 0, None)

    def _placed(self, row: Row, above: Standing | None) -> Standing:
        if above is None and not row[7]:
            above = self.without_parent(row[3], row[8], int(row[4]))
        return standing_of(row, above)

    def session_at(self, pid: str, when_ns: int) -> str | None:
        """The session of a process that was open at a time; the one that began last."""
        open_then = [s for s in self._sessions.get(pid, ()) if s[0] <= when_ns <= s[1]]
        return max(open_then)[2] if open_then else None

    def without_parent(self, some_id: str, pid: str, start_ns: int) -> Standing:
        """What is above a scope without a parent that is no session: its session, else itself."""
        session = self.session_at(pid, start_ns)
        return Standing(session or some_id, 0, None)

    def standings(self, batch: LightBatch, index: dict[str, LightSpan]) -> list[Standing]:
        """Where each span of a batch stands; of one that names its session, only in which."""
        if batch.session is not None:
            return [Standing(batch.session, 0, None)] * len(batch.spans)
        known: dict[str, Standing] = {}
        return [self._standing(span, index, known) for span in batch.spans]

    def _standing(
        self, span: LightSpan, index: dict[str, LightSpan], known: dict[str, Standing]
    ) -> Standing:
        found = known.get(span.id)
        if found is not None:
            return found
        above: Standing | None = None
        for scope in reversed(chain_of(span, index)):
            if scope.id in known:
                above = known[scope.id]
                continue
            above = known[scope.id] = self._below(scope, above)
        return above or Standing(span.id, 0, None)

    def _below(self, span: LightSpan | TypedSpan, above: Standing | None) -> Standing:
        if above is None:
            if span.parent_id is None:
                if span.is_session():
                    return Standing(span.id, 0, None)
                above = self.without_parent(span.id, str(span.pid), span.start_ns)
                if above.session == span.id:
                    return above
            else:
                above = self.resolve(span.parent_id)
        depth = above.depth + 1
        unit = (span.start_ns, span.id) if depth in (1, 2) else above.unit
        return Standing(above.session, depth, unit)

    def place(self, standing: Standing, segmented: bool) -> Place:
        """The trace of something that stands there."""
        trace_id = trace_id_for(standing.session)
        if segmented and standing.unit is not None:
            plan = Plan(standing.session, segments=self._segments.by_session)
            segment = plan.segment_of(standing.session, *standing.unit)
            trace_id = segment.trace_id if segment else trace_id
        return Place(standing.session, trace_id, standing.depth)

    def plan(self, batch: Seen, segmented: bool, fallback: str) -> Plan:
        """The plan of a batch; `fallback` is the session if nothing else is known."""
        ids = {span.id for span in batch.spans}
        outside = {span.parent_id for span in batch.spans} - ids
        external: dict[str, Place] = {}
        if None in outside:
            for span in batch.spans:
                if span.parent_id is None and not span.is_session():
                    external[span.id] = self.place(self._below(span, None), segmented)
        outside |= {ref.span_id for ref in (*batch.marks, *batch.snapshots)} - ids
        for some_id in outside:
            if some_id not in (None, "", "root"):
                external[some_id] = self.place(self.resolve(some_id), segmented)
        default = min((p.session for p in external.values()), default=None)
        default = default or next((s.id for s in batch.spans if s.is_session()), fallback)
        return Plan(default, external, self._segments.by_session if segmented else {})

    def undecided(self, batch: LightBatch) -> set[str]:
        """Scopes that a batch refers to and of which it is not known yet where they stand.

        None of spans that came in OTLP: the trace is theirs, and a parent may be in a service whose
        spans never come here.
        """
        if batch.session is not None or batch.is_foreign:
            return set()
        index = {span.id for span in batch.spans}
        refs = {s.parent_id for s in batch.spans if s.parent_id is not None}
        refs |= {ref.span_id for ref in (*batch.marks, *batch.snapshots)} - {"", "root"}
        return {root for ref in refs - index for root in self._open_roots(ref)}

    def _open_roots(self, some_id: str) -> Iterator[str]:
        seen = set()
        while some_id not in seen:
            seen.add(some_id)
            row = self._node(some_id)
            if row is None:
                yield some_id
                return
            if row[1] is None:
                return
            some_id = row[1]

    def ancestors(self, some_id: str) -> list[Ancestor]:
        """The recorded scopes from `some_id` up to its session."""
        result: list[Ancestor] = []
        seen = set()
        current: str | None = some_id
        while current is not None and current not in seen:
            seen.add(current)
            row = self._node(current)
            if row is None:
                break
            result += [Ancestor(*entry) for entry in json.loads(row[10])]
            current = row[1]
        return result


def _sortable(name: str) -> bytes:
    """A file's name, UTF-8 or not, as bytes that have the order of Python's strings."""
    return name.encode("utf-8", "surrogatepass")
