"""The placement of records: the session of every span of a batch, its depth, and its trace.

A batch alone is not sufficient: the record of an open epoch comes later, in another batch. A `Plan`
contains the places of scopes outside the batch; `session_index` builds plans from a complete spool.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ... import semconv as sc
from ...ids import is_id, trace_id_for

Record = dict[str, Any]

UNIT_DEPTHS = (1, 2)
"""Depths at which a segment may open: children and grandchildren of the session."""

_STATED_DEPTH = max(UNIT_DEPTHS)
"""The depth assumed for a scope outside a batch if the batch names its own trace. No segment opens
below this depth, so the scope's descendants are in that trace.
"""


class RecordPlacement(NamedTuple):
    """The session, the trace and the depth of one record."""

    session: str
    trace_id: bytes
    depth: int
    """0 for the session, 1 for its children, …"""


class Segment(NamedTuple):
    """A trace of a long session other than its first trace (layout `segmented`)."""

    start_ns: int
    unit_id: str
    """The id of the scope that opened the segment. Segments are ordered by (start_ns, unit_id)."""
    parent_id: str | None
    """The id of that scope's parent."""
    number: int
    """1 for the first trace after the session's own."""
    trace_id: bytes
    previous_trace_id: bytes


class StatedSegment(NamedTuple):
    """A segment whose opening is recorded in the batch itself."""

    segment: Segment
    parent_trace_id: bytes
    """The trace of the opening scope's parent, or the segment's own if the parent is unknown."""


class Running(NamedTuple):
    """A scope that is still open and that backends show before it ends."""

    id: str
    name: str
    number: int | None
    """The scope's `index`."""
    start_ns: int
    parent_id: str | None
    trace_id: bytes


class StatedSession(NamedTuple):
    """A batch's own data about its session (docs/otlp-mapping.md, "Batches that name …")."""

    trace_id: bytes
    """The trace of the batch's records that do not specify a trace of their own."""
    opened: tuple[StatedSegment, ...] = ()
    running: tuple[Running, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The places of scopes outside a batch."""

    default: str
    """The session of records for which no other session is known."""
    external: Mapping[str, RecordPlacement] = field(default_factory=dict)
    """The places, by id, of scopes that the batch refers to but does not contain, and of the
    batch's own scopes that have no parent.
    """
    segments: Mapping[str, Sequence[Segment]] = field(default_factory=dict)
    """The traces of each session after its first, in order; most sessions have only one trace."""
    traces: Mapping[str, bytes] = field(default_factory=dict)
    """The trace ids of sessions that joined another trace, by session."""
    stated: StatedSession | None = None
    """The batch's own data about its session, if it names one."""

    def session_trace(self, session: str) -> bytes:
        """Return the trace id of a session's first (or only) trace."""
        return self.traces.get(session) or trace_id_for(session)

    def segment_of(self, session: str, start_ns: int, unit_id: str) -> Segment | None:
        """Return the segment of a child or grandchild of the session; None for the first trace."""
        segments = self.segments.get(session)
        if not segments:
            return None
        # includes a segment that this scope opened: no text sorts between id and id + NUL
        number = bisect_right(segments, (start_ns, unit_id + "\0"))
        return segments[number - 1] if number else None

    def below(self, parent: RecordPlacement, start_ns: int, own_id: str) -> RecordPlacement:
        """Return the place of a scope whose parent is at `parent`."""
        depth = parent.depth + 1
        if depth in UNIT_DEPTHS:
            segment = self.segment_of(parent.session, start_ns, own_id)
            trace_id = segment.trace_id if segment else self.session_trace(parent.session)
            return RecordPlacement(parent.session, trace_id, depth)
        return RecordPlacement(parent.session, parent.trace_id, depth)

    def place(
        self,
        parent: RecordPlacement | None,
        own_id: str,
        parent_id: str | None,
        start_ns: int,
        *,
        is_session: bool,
    ) -> RecordPlacement:
        """Place a span. Every session, depth and trace of a record is determined by this rule.

        `tests/core/targets/sql/placement_cases.py` has test cases, which are run with every store.

        1. A span whose parent is in the batch is below it (`parent` is the parent's place).
        2. A span whose parent is elsewhere is below the parent's place in `external`, or below the
           default session if the plan does not contain the parent.
        3. A span without a parent takes its place from `external`, if it is listed there.
        4. Otherwise, the root of a session is that session, in its first trace.
        5. Any other span without a parent is a child of the default session.
        """
        if parent is not None:
            return self.below(parent, start_ns, own_id)
        if parent_id is not None:
            return self.below(self.outside(parent_id), start_ns, own_id)
        if own_id in self.external:
            return self.external[own_id]
        if is_session and own_id:
            return RecordPlacement(own_id, self.session_trace(own_id), 0)
        return self.below(self.outside(None), start_ns, own_id)

    def outside(self, some_id: object) -> RecordPlacement:
        """Return the place of a scope that the batch does not contain."""
        if isinstance(some_id, str):
            place = self.external.get(some_id)
            if place is not None:
                return place
        if self.stated is not None:
            return RecordPlacement(self.default, self.stated.trace_id, _STATED_DEPTH)
        return RecordPlacement(self.default, self.session_trace(self.default), 0)


def stated_trace(value: object) -> bytes:
    """Return the trace id that an `otel` object contains as 32 hex digits; empty if not valid."""
    return bytes.fromhex(value) if is_id(value) and value != "0" * 32 else b""  # type: ignore[arg-type]


def stated_place(session: str, trace_id: bytes) -> RecordPlacement:
    """Return the place of a scope outside a batch, if the batch names its session and trace."""
    return RecordPlacement(session, trace_id, _STATED_DEPTH)


def is_session(span: Record) -> bool:
    """Return whether a span record is the root of a session."""
    return span.get("name") == sc.SESSION and span.get("parent_id") is None


def first_index(records: Sequence[Record]) -> dict[str, int]:
    """Map each id to the index of the first record that has it."""
    index: dict[str, int] = {}
    for number, record in enumerate(records):
        record_id = record.get("id")
        if isinstance(record_id, str):
            index.setdefault(record_id, number)
    return index


def place_spans(
    spans: Sequence[Record], index: Mapping[str, int], plan: Plan
) -> list[RecordPlacement]:
    """Return the place of every span of a batch."""
    places: list[RecordPlacement | None] = [None] * len(spans)
    for number in range(len(spans)):
        chain: list[int] = []
        seen: set[int] = set()
        current: int | None = number
        while current is not None and places[current] is None and current not in seen:
            chain.append(current)
            seen.add(current)
            parent = spans[current].get("parent_id")
            current = index.get(parent) if isinstance(parent, str) else None
        parent_place = places[current] if current is not None else None
        for step in reversed(chain):
            parent_place = places[step] = _place(spans[step], parent_place, plan)
    return [place for place in places if place is not None]


def _place(span: Record, above: RecordPlacement | None, plan: Plan) -> RecordPlacement:
    start, stated_id = span.get("start_ns"), span.get("id")
    start_ns = start if isinstance(start, int) else 0
    own_id = stated_id if isinstance(stated_id, str) else ""
    parent = span.get("parent_id")
    parent_id = parent if isinstance(parent, str) else None
    return plan.place(above, own_id, parent_id, start_ns, is_session=is_session(span))
