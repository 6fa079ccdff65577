"""Count the records of a session into segments: the traces that form a long session.

Only batches that do not name their session are counted: in batches that do, each record has its
trace id. Files are counted in the order of their names (docs/adr/0003).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from ...ids import segment_trace_id, trace_id_for
from .batch_outline import BatchOutline, ScopePosition, SpanOutline, is_user_record
from .batch_placement import Segment

SEGMENT_RECORDS = 4000
"""After this many records, the next child or grandchild of the session opens a new trace."""

SEGMENT_SCHEMA = """
CREATE TABLE IF NOT EXISTS segment (
  session TEXT, number INTEGER, start TEXT, unit TEXT, parent TEXT, trace BLOB, previous BLOB,
  PRIMARY KEY (session, number)
);
CREATE TABLE IF NOT EXISTS weight (session TEXT PRIMARY KEY, records INTEGER);
"""


class Segmenter:
    """The segments of all sessions in an index, and the record count of each session's last one."""

    def __init__(self, db: sqlite3.Connection) -> None:
        """Continue with the counts in `db`, which has the tables of SEGMENT_SCHEMA."""
        self._db = db
        self.by_session: dict[str, list[Segment]] = {}
        """The segments of each session, in order, except the first one, which is implicit."""
        rows = db.execute(
            "SELECT session, start, unit, parent, number, trace, previous FROM segment"
            " ORDER BY session, number"
        ).fetchall()
        for session, start, *others in rows:
            self.by_session.setdefault(session, []).append(Segment(int(start), *others))
        self._weights: dict[str, int] = dict(db.execute("SELECT session, records FROM weight"))
        """Records in the last segment, by session."""
        self._counted: dict[str, None] = {}
        """The sessions that were counted since the last `save`, in order."""

    def save(self) -> None:
        """Write the counts to the index, before a commit."""
        rows = [(session, self._weights[session]) for session in self._counted]
        self._db.executemany("REPLACE INTO weight VALUES (?, ?)", rows)
        self._counted = {}

    def keep_latest(self, most: int) -> None:
        """If there are more than `most` sessions, drop those that were counted least recently.

        Half of `most` are kept. Later records of a dropped session are counted from zero, and are
        in the first trace of their session.
        """
        if len(self._weights) <= most:
            return
        self.save()
        dropped = list(self._weights)[: len(self._weights) - most // 2]
        for session in dropped:
            del self._weights[session]
            self.by_session.pop(session, None)
        rows = [(session,) for session in dropped]
        self._db.executemany("DELETE FROM weight WHERE session = ?", rows)
        self._db.executemany("DELETE FROM segment WHERE session = ?", rows)

    def _touch(self, session: str) -> None:
        """Make a session the most recently counted one, and mark it for `save`."""
        self._weights[session] = self._weights.pop(session, 0)
        self._counted[session] = None

    def count(
        self,
        batch: BatchOutline,
        positions: list[ScopePosition],
        resolve: Callable[[str], ScopePosition],
    ) -> None:
        """Count a batch's records; call this in the order of the file names.

        `positions` has the position of each span; `resolve` returns the position of a scope in
        another batch. Within a batch, records count in the order of their start. A segment opens at
        the first child or grandchild of the session that starts after the previous segment is full.
        """
        attached_counts: dict[str, int] = {}
        for ref in filter(is_user_record, (*batch.marks, *batch.snapshots)):
            attached_counts[ref.span_id] = attached_counts.get(ref.span_id, 0) + 1
        last: str | None = None
        for number in sorted(range(len(batch.spans)), key=lambda n: batch.spans[n].start_ns):
            span, position = batch.spans[number], positions[number]
            session = position.session
            if session != last:
                self._touch(session)
                last = session
            weight = self._weights.get(session, 0)
            if weight >= SEGMENT_RECORDS and position.depth in (1, 2):
                weight = self._open(span, position, weight)
            self._weights[session] = weight + 1 + attached_counts.pop(span.id, 0)
        for some_id, number in attached_counts.items():
            session = resolve(some_id).session if some_id not in ("", "root") else ""
            self._touch(session)
            self._weights[session] += number

    def count_at_once(self, session: str, records: int) -> bool:
        """Count a batch's records in one step, or return False if a segment may open in it."""
        weight = self._weights.get(session, 0) + records
        if weight > SEGMENT_RECORDS:
            return False
        self._touch(session)
        self._weights[session] = weight
        return True

    def _open(self, span: SpanOutline, position: ScopePosition, weight: int) -> int:
        """Open a segment at a span, if possible; return the record count of the last segment."""
        segments = self.by_session.setdefault(position.session, [])
        if segments and (span.start_ns, span.id) <= segments[-1][:2]:
            return weight  # the span started before the last segment: it is in an earlier one
        first = trace_id_for(position.session)
        number = len(segments) + 1
        trace_id = segment_trace_id(position.session, span.id, number, first)
        previous = segments[-1].trace_id if segments else first
        segment = Segment(span.start_ns, span.id, span.parent_id, number, trace_id, previous)
        segments.append(segment)
        start, unit, parent, *others = segment
        self._db.execute(
            "INSERT OR IGNORE INTO segment (session, start, unit, parent, number, trace, previous)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (position.session, str(start), unit, parent, *others),
        )
        return 0
