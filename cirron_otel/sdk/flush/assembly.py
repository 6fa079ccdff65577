"""Build the batches of one flush: assign ids to marks, and encode all records.

Scopes are converted one slice at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, itemgetter
from os import urandom
from typing import Any

from ..session.errors import record_error
from ..tracing.buffers import MarkEntry
from ..tracing.clock import ANCHOR
from ..tracing.coerce import Deferred
from ..tracing.mark import POINT, SampleAttributes
from ..tracing.scope import NO_SESSION, Scope
from ..tracing.traces import Trace
from .batch_text import BatchText, Text, batch_text
from .drain import FlushChanges
from .json_attributes import NONE
from .rows import MarkRow, SnapshotRow, SpanRow
from .scope_rows import scope_rows, span_order
from .span_rows import is_encodable, mark_row, recorded_above

ROOT = "root"
"""The span id of marks made outside of every session (schemas page, "marks[]")."""

_CHECKED = 2048
"""Number of marks between two checkpoints."""
_mark_time = attrgetter("ts_ns")
_order = attrgetter("ts_ns", "id")


def _nothing() -> None:
    pass


def ids_of(
    entries: list[MarkEntry], session: Scope, checkpoint: Callable[[], None] = _nothing
) -> tuple[dict[Scope, list[str]], list[tuple[str, str]]]:
    """Return the mark ids of each scope, and a pair (mark id, scope id) for each mark.

    A mark's id consists of random bytes and the second half of the scope's id, or of the session's
    id for a mark outside of every session. A scope that is not recorded has the id "". Both ids are
    "" if the mark's value cannot be encoded.
    """
    ids: dict[Scope, list[str]] = {}
    pairs: list[tuple[str, str]] = []
    put = pairs.append
    halves = urandom(8 * len(entries)).hex(" ", 8).split(" ")
    last: Any = None
    span_id = low = ""
    scope_ids: list[str] = []
    for at in range(0, len(entries), _CHECKED):
        checkpoint()
        part = slice(at, at + _CHECKED)
        for entry, half in zip(entries[part], halves[part], strict=False):
            scope: Any = entry[0]
            if scope is not last:
                last = scope if scope._id else None
                is_sample = type(entry[5]) is SampleAttributes
                if not scope._id and (scope._inside is not None or is_sample):
                    # The scope turned out not to be a step, or a phase.
                    scope = recorded_above(scope)
                low = scope._trace.low
                span_id = "%016x%s" % (scope._id, low) if scope._id else ""  # noqa: UP031 - faster
                if scope is NO_SESSION:
                    span_id, low = ROOT, session._trace.low
                known = ids.get(scope)
                scope_ids = [] if known is None else known
                ids[scope] = scope_ids
            value = entry[2]
            kind = type(value)
            if (kind is int or kind is Deferred) and not is_encodable(value):
                put(("", ""))
                continue
            mark_id = half + low
            scope_ids.append(mark_id)
            put((mark_id, span_id))
    return ids, pairs


def mark_rows(
    entries: list[MarkEntry], ids: list[tuple[str, str]], change: FlushChanges
) -> list[MarkRow]:
    """Return the records of marks; count marks that cannot be recorded as lost."""
    rows: list[MarkRow] = []
    put = rows.append
    for entry, (mark_id, span_id) in zip(entries, ids, strict=True):
        _, name, value, time_, kind, attrs = entry
        try:
            if (
                type(value) is float
                and value - value == 0.0  # neither NaN nor infinite
                and kind == POINT
                and not attrs
                and type(name) is str
                and span_id
            ):
                put(MarkRow(mark_id, span_id, name, "float", value, NONE, time_ + ANCHOR, POINT))
                continue
            if span_id:
                put(mark_row(entry, mark_id, span_id))
                continue
        except Exception as error:
            record_error("record", error)
        change.marks_lost += 1
    return rows


def sort_marks(marks: list[MarkRow], *, are_in_time: bool = False) -> None:
    """Sort into canonical order, (ts_ns, id): by time alone if all times are distinct.

    `are_in_time` means that the marks are sorted by time already.
    """
    has_ties = len(set(map(_mark_time, marks))) < len(marks)
    if has_ties or not are_in_time:
        marks.sort(key=_order if has_ties else _mark_time)


MAX_SPANS = 8_000
"""Maximum number of spans in a batch; a flush with more spans produces several batches."""
MAX_MARKS = 32_000
MAX_SNAPSHOTS = 4_000
_SLICE = 256
_entry_time = itemgetter(3)

Naming = Callable[[], tuple[str, int]]
"""Returns the id and the time of a new batch."""
Emit = Callable[[BatchText], None]
"""Receives each batch as soon as it is complete."""


class TimeOverError(BaseException):
    """Raised by a checkpoint if no time is left to build more batches."""


class BatchAssembly:
    """Builds batches, and reuses its buffers for all of them."""

    def __init__(self, common: tuple[int, int | None, int], session: Scope, naming: Naming) -> None:
        """`common` has the same meaning as in `scope_rows`."""
        self._common, self._session, self._naming = common, session, naming
        self._spans, self._marks, self._snapshots = Text(), Text(), Text()
        self.checkpoint: Callable[[], None] = _nothing
        """Called before each slice; what it raises ends the assembly."""

    def omit_overhead(self) -> None:
        """Record no more marks with the SDK's own time."""
        self._common = *self._common[:2], 0

    def set_rank(self, rank: int) -> None:
        """Set the rank of all later rows."""
        pid, _, every = self._common
        self._common = pid, rank, every

    def assemble(
        self,
        ended: list[Scope],
        entries: list[MarkEntry],
        foreign: list[SpanRow],
        default: Trace,
        change: FlushChanges,
        otel_of: Callable[[dict[Scope, list[str]], bool], tuple[dict[str, Any], dict[str, Any]]],
        wanted: set[str],
        snapshots: list[SnapshotRow],
        emit: Emit,
    ) -> tuple[list[SpanRow], dict[Scope, list[str]]]:
        """Build the batches of a flush, and pass them to `emit`.

        Returns the records of spans whose ids are in `wanted` or that an earlier batch refers to,
        and the ids of marks whose scope is not in `ended`, by scope. `ended`, `foreign`, and
        `snapshots` are in canonical order. `otel_of` receives the mark ids by scope, and whether
        there may be several batches; it returns the `otel` objects of the first batch and of the
        later batches.

        Raises TimeOverError if `checkpoint` does. Then the batches contain a part of the records.
        """
        for text in (self._spans, self._marks, self._snapshots):
            text.clear()
            text.lost = 0
        entries = sorted(entries, key=_entry_time)
        ids, mark_ids = ids_of(entries, self._session, self.checkpoint)
        is_split = len(ended) + len(foreign) >= MAX_SPANS or len(entries) >= MAX_MARKS - MAX_SPANS
        otel, brief = otel_of(ids, is_split)
        maker = _Making(
            self, entries, mark_ids, foreign, change, otel, brief, emit, is_split=is_split
        )
        try:
            closed = self._add_all(maker, ended, ids, default, change, wanted)
            maker.finish(snapshots)
        except TimeOverError:
            maker.finish([])
            raise
        change.spans_lost += self._spans.lost
        change.marks_lost += self._marks.lost
        change.snapshots_lost += self._snapshots.lost
        return closed, ids

    def _add_all(
        self,
        maker: _Making,
        ended: list[Scope],
        ids: dict[Scope, list[str]],
        default: Trace,
        change: FlushChanges,
        wanted: set[str],
    ) -> list[SpanRow]:
        closed: list[SpanRow] = []
        at = 0
        while at < len(ended):
            self.checkpoint()
            end = min(at + _SLICE, len(ended))
            while end < len(ended) and ended[end]._end == ended[end - 1]._end:
                end += 1  # one slice contains all scopes with the same end time: they sort by id
            marks: list[MarkRow] = []
            rows = scope_rows(ended[at:end], ids, default, self._common, change, marks)
            earlier = maker.earlier_parents
            rows = maker.add(rows, marks, ended[end - 1]._end)
            if wanted or earlier:
                closed += [row for row in rows if row.id in wanted or row.id in earlier]
            at = end
        rows = maker.add([], [], None)
        closed += [row for row in rows if row.id in wanted or row.id in maker.earlier_parents]
        return closed


class _Making:
    """The batches of one flush while they are being built."""

    def __init__(
        self,
        assembly: BatchAssembly,
        entries: list[MarkEntry],
        mark_ids: list[tuple[str, str]],
        foreign: list[SpanRow],
        change: FlushChanges,
        otel: dict[str, Any],
        brief: dict[str, Any],
        emit: Emit,
        *,
        is_split: bool,
    ) -> None:
        """With `is_split`, there may be several batches."""
        self._is_split = is_split
        self._assembly, self._entries, self._mark_ids = assembly, entries, mark_ids
        self._foreign, self._change = foreign, change
        self._otel, self._brief = otel, brief
        self._mark_at = self._foreign_at = 0
        self._emit, self._is_first = emit, True
        self._parents: set[str | None] = set()
        self.earlier_parents: set[str | None] = set()
        """The ids of the parents of all spans in complete batches."""

    def add(self, rows: list[SpanRow], marks: list[MarkRow], until: int | None) -> list[SpanRow]:
        """Add a slice of spans, and all other records up to `until` (None: all remaining records).

        Returns the added spans, including those of other libraries.
        """
        entries, at = self._entries, self._mark_at
        end = at
        if until is None:
            end = len(entries)
        else:
            while end < len(entries) and entries[end][3] <= until:
                end += 1
        if end > at:
            marks += mark_rows(entries[at:end], self._mark_ids[at:end], self._change)
            self._mark_at = end
        if self._foreign_at < len(self._foreign):
            rows = self._with_foreign(rows, until)
        if len(marks) > 1:
            sort_marks(marks, are_in_time=end == at)
        spans, texts = self._assembly._spans, self._assembly._marks
        spans.add(rows)
        if self._is_split:
            self._parents.update([row.parent_id for row in rows])
        for start in range(0, len(marks), _SLICE):
            self._assembly.checkpoint()
            if texts.count >= MAX_MARKS:
                self._close()
            texts.add(marks[start : start + _SLICE])
        if spans.count >= MAX_SPANS:
            self._close()
        return rows

    def _with_foreign(self, rows: list[SpanRow], until: int | None) -> list[SpanRow]:
        foreign, at = self._foreign, self._foreign_at
        end = at
        last = None if until is None else until + ANCHOR
        while end < len(foreign) and (last is None or foreign[end].end_ns <= last):
            end += 1
        self._foreign_at = end
        return sorted([*rows, *foreign[at:end]], key=span_order) if end > at else rows

    def _close(self) -> None:
        assembly = self._assembly
        batch_id, created_ns = assembly._naming()
        self.earlier_parents = self.earlier_parents | self._parents
        otel, self._is_first = self._otel if self._is_first else self._brief, False
        self._emit(
            batch_text(
                assembly._spans, assembly._marks, otel, batch_id, created_ns, assembly._snapshots
            )
        )

    def finish(self, snapshots: list[SnapshotRow]) -> None:
        """Add the snapshots, and close the last batch unless it would be empty."""
        assembly = self._assembly
        for start in range(0, len(snapshots), _SLICE):
            if assembly._snapshots.count >= MAX_SNAPSHOTS:
                self._close()
            assembly._snapshots.add(snapshots[start : start + _SLICE])
        is_news = self._is_first and ("running" in self._otel or "segments" in self._otel)
        has_any = assembly._spans.count or assembly._marks.count or assembly._snapshots.count
        if has_any or is_news:
            self._close()


def random_name(now_ns: Callable[[], int]) -> Naming:
    """Return a function that names batches with random ids, for batches without an owner."""
    return lambda: (urandom(16).hex(), now_ns())
