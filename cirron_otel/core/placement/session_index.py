"""Find the session and the segment of each record of a spool whose batches do not name them.

This project's SDK writes both into every batch; such batches are only searched for the scopes that
other batches refer to.

A batch from cirron-sdk does not name its session, and a scope's parent is often still open when the
scope is sealed. So a spool is read twice before it is converted: first to find the scopes that
other batches refer to, then to count records into segments. The results are in an SQLite file, so
that memory does not grow with the spool and worker processes can query them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ...ids import trace_id_for
from ..state_database import WAL, open_database
from ..translator.typed import TypedSpan
from .batch_outline import BatchOutline, Outline, ScopePosition, SpanOutline, is_user_record
from .batch_placement import Plan, RecordPlacement
from .scope_index import ScopeIndex
from .segments import SEGMENT_SCHEMA, Segmenter

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


class SessionIndex(ScopeIndex):
    """The sessions of a spool and their scopes, in an SQLite file."""

    def __init__(self, path: str | Path = ":memory:", *, durable: bool = False) -> None:
        """Open or create the index at `path`; pass `durable=True` to reopen the file later."""
        self.path = str(path)
        db = open_database(self.path, WAL if durable else "journal_mode=OFF", "synchronous=OFF")
        db.executescript(_SCHEMA + SEGMENT_SCHEMA)
        super().__init__(db)
        self._unplaced: set[str] = set()
        """The pending scopes that only marks and snapshots have referred to so far."""
        self._db.execute("BEGIN")
        self._load()
        self._segments = Segmenter(self._db)

    def _load(self) -> None:
        rows = self._db.execute("SELECT pid, start, end, id FROM session ORDER BY id").fetchall()
        for pid, start, end, session in rows:
            self._sessions.setdefault(pid, []).append((int(start), int(end), session))

    def commit(self) -> None:
        """Make additions visible to other connections to the file."""
        self._segments.save()
        self._db.execute("COMMIT")
        self._db.execute("BEGIN")

    def close(self, *, commit: bool = True) -> None:
        """Close the file; `commit=False` drops the additions since the last commit."""
        if commit:
            self.commit()
        self._db.close()

    # --- first reading: the scopes that other batches refer to ----------------------------------

    def observe(self, batch: BatchOutline, name: str = "") -> None:
        """Add a batch; call this in the order of the file names.

        `count_all` counts only batches that were added with a `name`.
        """
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
        # Always add epochs, so that a batch that arrives after its epoch is placed at once.
        epochs = {span.id for span in batch.spans if span.name == _EPOCH}
        self._add_nodes(batch, epochs | ids & self._pending.keys())

    def _add_nodes(self, batch: BatchOutline, found: set[str]) -> None:
        """Add the scopes of a batch whose ids are in `found`, with their ancestors."""
        if found:
            index = {span.id: span for span in batch.spans}
            for some_id in found:
                self._add_chain(index[some_id], index)

    def _note(self, name: str, batch: BatchOutline, outside: set[str | None]) -> None:
        alone = outside and not outside & {None, "", "root"}
        outside_json = json.dumps(sorted(str(some_id) for some_id in outside)) if alone else ""
        records = len(batch.spans) + len(batch.snapshots) + sum(map(is_user_record, batch.marks))
        row = (_sortable(name), outside_json, records)
        self._db.execute("REPLACE INTO batch VALUES (?, ?, ?)", row)

    def rescan(self, batches: Callable[[], Iterable[BatchOutline]]) -> None:
        """Find scopes that were recorded before the batches that refer to them."""
        if not self._pending:
            return
        for batch in batches():
            index: dict[str, SpanOutline] | None = None
            for span in batch.spans:
                if span.id in self._pending:
                    index = index or {s.id: s for s in batch.spans}
                    self._add_chain(span, index)
                    if span.parent_id is not None and span.parent_id not in index:
                        self._refer(span.parent_id, span)

    def _refer(self, some_id: str, child: SpanOutline | None) -> None:
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

    def _add_session(self, span: SpanOutline) -> None:
        row = (span.id, str(span.pid), str(span.start_ns), str(span.end_ns))
        if self._db.execute("INSERT OR IGNORE INTO session VALUES (?, ?, ?, ?)", row).rowcount:
            entry = (span.start_ns, span.end_ns, span.id)
            self._sessions.setdefault(str(span.pid), []).append(entry)

    # --- second reading: segments ---------------------------------------------------------------

    def count(self, batch: BatchOutline) -> None:
        """Count a batch's records into segments; call this in the order of the file names.

        A batch that names its session is not counted, because its records have trace ids.
        """
        if batch.session is None:
            index = {span.id: span for span in batch.spans}
            self._segments.count(batch, self.positions(batch, index), self.resolve)

    def count_all(self, read: Callable[[str], BatchOutline | None]) -> None:
        """Count the batches that were added with a name; `read` reads a batch again if necessary.

        A batch is not read again if it has one session and no segment can open in it.
        """
        for name, outside, records in self._observed():
            if outside and self._counted_at_once(json.loads(outside), records):
                continue
            batch = read(name)
            if batch is not None:
                self.count(batch)

    def _observed(self) -> Iterator[tuple[str, str, int]]:
        """Yield the batches in order. Queries are paged, because the caller writes in between."""
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

    # --- queries --------------------------------------------------------------------------------

    def positions(self, batch: BatchOutline, index: dict[str, SpanOutline]) -> list[ScopePosition]:
        """Return the position of each span; every depth is 0 if the batch names its session."""
        if batch.session is not None:
            return [ScopePosition(batch.session, 0, None)] * len(batch.spans)
        known: dict[str, ScopePosition] = {}
        return [self._position(span, index, known) for span in batch.spans]

    def _position(
        self, span: SpanOutline, index: dict[str, SpanOutline], known: dict[str, ScopePosition]
    ) -> ScopePosition:
        chain: list[SpanOutline] = []
        seen: set[str] = set()
        current: SpanOutline | None = span
        while current is not None and current.id not in known and current.id not in seen:
            seen.add(current.id)
            chain.append(current)
            parent_id = current.parent_id
            current = index.get(parent_id) if parent_id is not None else None
        parent_position = known.get(current.id) if current is not None else None
        for scope in reversed(chain):
            parent_position = known[scope.id] = self._below(scope, parent_position)
        return parent_position or ScopePosition(span.id, 0, None)

    def _below(self, span: SpanOutline | TypedSpan, above: ScopePosition | None) -> ScopePosition:
        if above is None:
            if span.parent_id is None:
                if span.is_session():
                    return ScopePosition(span.id, 0, None)
                above = self.without_parent(span.id, str(span.pid), span.start_ns)
                if above.session == span.id:
                    return above
            else:
                above = self.resolve(span.parent_id)
        depth = above.depth + 1
        unit = (span.start_ns, span.id) if depth in (1, 2) else above.unit
        return ScopePosition(above.session, depth, unit)

    def place(self, position: ScopePosition, segmented: bool) -> RecordPlacement:
        """Return the session, the trace and the depth of a record at a position."""
        trace_id = trace_id_for(position.session)
        if segmented and position.unit is not None:
            plan = Plan(position.session, segments=self._segments.by_session)
            segment = plan.segment_of(position.session, *position.unit)
            trace_id = segment.trace_id if segment else trace_id
        return RecordPlacement(position.session, trace_id, position.depth)

    def plan(self, batch: Outline, segmented: bool, fallback: str) -> Plan:
        """Return the plan of a batch; `fallback` is the session if no other is found."""
        ids = {span.id for span in batch.spans}
        outside = {span.parent_id for span in batch.spans} - ids
        external: dict[str, RecordPlacement] = {}
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

    def undecided(self, batch: BatchOutline) -> set[str]:
        """Return the scopes that a batch refers to and whose positions are not known yet.

        The result is empty for spans that were received as OTLP: they have trace ids, and a parent
        may be in a service whose spans never arrive.
        """
        if batch.session is not None or batch.is_foreign:
            return set()
        index = {span.id for span in batch.spans}
        refs = {s.parent_id for s in batch.spans if s.parent_id is not None}
        refs |= {ref.span_id for ref in (*batch.marks, *batch.snapshots)} - {"", "root"}
        seen: set[str] = set()
        return {root for ref in refs - index for root in self._open_roots(ref, seen)}


def _sortable(name: str) -> bytes:
    """Return a file name, UTF-8 or not, as bytes that sort like Python's strings."""
    return name.encode("utf-8", "surrogatepass")
