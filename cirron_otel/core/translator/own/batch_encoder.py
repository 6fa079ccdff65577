"""Encode a batch or a part of a batch: write its header, and group and place its records.

A `SpanWriter` encodes the spans. `ExactWriter` uses protobuf objects and the exact mappers;
`PieceWriter` uses cached pieces of protobuf. Both produce the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from .... import semconv as sc
from ...placement.batch_placement import UNIT_DEPTHS, Plan, RecordPlacement
from ..header import Counts, Header, Origin
from ..options import SESSION_LAYOUT, Options
from ..values import INT64_MAX, is_int
from .batch_fields import BatchLevelFields
from .parts import Part
from .spans import Placed, SpanSet, natural_parent, overhead_mark
from .synthetic import Carrier, residual_carrier, segment_links_of, stated_links

M = TypeVar("M")
PlaceOf = Callable[[str], RecordPlacement | None]
"""Takes a scope's id; returns the scope's place, or None if the scope is not in the batch."""


@dataclass(slots=True)
class Group:
    """The part of a batch that belongs to one session: one resource with one scope."""

    spans: list[Any] = field(default_factory=list)
    """The spans, in the form that their writer uses."""
    carriers: list[Carrier] = field(default_factory=list)
    segment_links: list[Span] = field(default_factory=list)
    pid: int | None = None
    rank: int | None = None
    """The first rank in the group. A span whose `pid` or `rank` differs has it as an attribute."""


class SpanWriter(Protocol[M]):
    """Encodes the spans of a batch: the strategy of `BatchEncoder`."""

    fields: BatchLevelFields
    lengths: tuple[int, int, int]
    """The numbers of spans, marks and snapshots."""

    def collect(self, encoder: BatchEncoder[Any]) -> None:
        """Add the spans to their groups, and carriers for the events that are not on a span.

        Also calls `encoder.open_segment` for each span, in order, and sets `encoder.first_place`.
        """

    def messages(self, encoder: BatchEncoder[Any], header: Header) -> list[M]:
        """Encode the groups, with their carriers and segment links."""


class BatchEncoder(Generic[M]):
    """Encodes one batch."""

    def __init__(
        self,
        writer: SpanWriter[M],
        plan: Plan,
        options: Options,
        part: Part | None = None,
    ) -> None:
        """Prepare to encode the batch of `writer`; `part` is given if that batch is a part."""
        self.writer, self.plan, self.part = writer, plan, part
        self.one_trace = options.layout == SESSION_LAYOUT
        self.fields = writer.fields
        self.groups: dict[str, Group] = {}
        self.first_place: RecordPlacement | None = None
        """The place of the first span; None if the batch has no spans."""
        self.has_detached_events = False
        """Whether marks or snapshots are not on the span of their scope."""
        self._ordinal = 0
        self._opened: set[bytes] = set()

    def encode(self) -> list[M]:
        """Encode the batch: one message per session."""
        self.writer.collect(self)
        fields, part = self.fields, self.part
        if part is None:
            fields.repeat(len(self.groups))
        else:
            fields.omit(part)
        residual = fields.residual()
        inline = "" if len(residual) > sc.REST_PIECE else residual
        segment_links = stated_links(self.plan, one_trace=self.one_trace)
        if part is not None and not segment_links:
            segment_links = part.segment_links
        if self._needs_carrier(segment_links) or residual != inline:
            self._carry_residual("" if residual == inline else residual)
        if segment_links:
            self.group(self.plan.default).segment_links += segment_links
        synthetic = sum([len(g.carriers) + len(g.segment_links) for g in self.groups.values()])
        counts = Counts(*self.writer.lengths, synthetic)
        if part is not None:
            counts = part.counts(synthetic)
        return self.writer.messages(self, fields.header(counts, inline))

    def group(self, session: str) -> Group:
        """Return the group of a session; a new group is added at the end."""
        group = self.groups.get(session)
        if group is None:
            group = self.groups[session] = Group()
        return group

    def origin(self, session: str, group: Group, header: Header) -> Origin:
        """Return the resource of a group."""
        attributes = self.fields.resource_attributes
        return Origin(session, group.pid, group.rank, header.added_service_name, attributes)

    def outer_trace(self, place: RecordPlacement) -> bytes:
        """Return the trace of a scope that is not in the batch."""
        return self.plan.session_trace(place.session) if self.one_trace else place.trace_id

    def outer_scope(self, span_id: object) -> tuple[bytes, bytes, str]:
        """Return the trace, the wire id and the session of a scope that is not in the batch."""
        place = self.plan.outside(span_id)
        parent = natural_parent(None if span_id in (None, "root") else span_id)
        trace_id = self.outer_trace(place)
        if self.plan.stated is None and not self.one_trace:
            trace_id = self.fields.trace_id or trace_id
        return trace_id, parent, place.session

    def carry(
        self,
        attached: tuple[list[Placed], list[Placed]],
        trace_id: bytes,
        parent: bytes,
        span_id: object,
        session: str,
    ) -> None:
        """Put a scope's marks and snapshots on as many carriers as their size requires."""
        marks, snapshots = attached
        while marks or snapshots:
            (now, size), marks = fitting(marks, sc.MAX_EVENTS, sc.MAX_SPAN_BYTES, at_least=1)
            carrier = Carrier(self.next_ordinal(), trace_id, parent, span_id, marks=now)
            if not marks:
                space = sc.MAX_EVENTS - len(now)
                least = 0 if now else 1
                fitted_snapshots, snapshots = fitting(
                    snapshots, space, sc.MAX_SPAN_BYTES - size, least
                )
                carrier.snapshots = fitted_snapshots[0]
            self.add_carrier(carrier, session)

    def next_ordinal(self) -> int:
        """Return the ordinal of the next carrier."""
        self._ordinal += 1
        return self._ordinal - 1

    def add_carrier(self, carrier: Carrier, session: str) -> None:
        """Add a carrier of events. Its times are those of its first and its last event."""
        times = [record.get("ts_ns") for record, _ in (*carrier.marks, *carrier.snapshots)]
        known = [time for time in times if is_int(time, 0, INT64_MAX)]
        if known:
            carrier.start_ns, carrier.end_ns = min(known), max(known)  # type: ignore[type-var,assignment]
        self.group(session).carriers.append(carrier)
        self.has_detached_events = True

    def open_segment(
        self, place: RecordPlacement, start_ns: int, own_id: str, place_of: PlaceOf
    ) -> None:
        """Add the segment links if a segment opens at this span.

        `place_of` returns the place of a scope in the batch.
        """
        if self.one_trace or place.depth not in UNIT_DEPTHS:
            return
        segment = self.plan.segment_of(place.session, start_ns, own_id)
        if segment is None or segment[:2] != (start_ns, own_id):
            return
        if segment.trace_id in self._opened:
            return
        self._opened.add(segment.trace_id)
        parent_id = segment.parent_id
        parent_place = place_of(parent_id) if parent_id is not None else None
        if parent_place is None:
            parent_place = self.plan.outside(parent_id)
        session_trace = self.plan.session_trace(place.session)
        links = segment_links_of(place.session, session_trace, segment, parent_place.trace_id)
        self.group(place.session).segment_links += links

    def _needs_carrier(self, segment_links: list[Span]) -> bool:
        """Return whether a carrier `cirron.batch` is needed even if the header has room."""
        if self.part is not None:
            return any(carrier.has_residual for carrier in self.part.carriers)
        return not (self.writer.lengths[0] or segment_links)

    def _carry_residual(self, residual: str) -> None:
        """Add the carrier `cirron.batch`, which contains the residual."""
        place = self.first_place
        if place is None or self.plan.stated is not None:
            place = self.plan.outside(None)
        ordinal = self._residual_ordinal()
        carrier = residual_carrier(
            ordinal, self.outer_trace(place), residual, self.fields.created_ns
        )
        self.group(place.session).carriers.append(carrier)

    def _residual_ordinal(self) -> int:
        if self.part is not None:
            for carrier in self.part.carriers:
                if carrier.has_residual:
                    return carrier.ordinal
        return self.next_ordinal()


def in_order_of(mark_ids: object, marks: list[Placed]) -> list[Placed]:
    """Order a span's marks by `mark_ids`; keep their order unless it lists exactly these marks."""
    if not isinstance(mark_ids, list) or len(mark_ids) != len(marks):
        return marks
    by_id = {m["id"]: (m, seq) for m, seq in marks if isinstance(m.get("id"), str)}
    if len(by_id) != len(marks) or not all(isinstance(i, str) and i in by_id for i in mark_ids):
        return marks
    ordered = [by_id[mark_id] for mark_id in mark_ids]
    return ordered if len({id(mark) for mark, _ in ordered}) == len(marks) else marks


def take_overhead(unit: SpanSet, marks: list[Placed]) -> list[Placed]:
    """Turn the SDK's own overhead mark, if it is the last mark, into an attribute of the span.

    Returns the other marks.
    """
    record = unit.record
    if not marks or not isinstance(record.get("id"), str) or not is_int(record.get("end_ns"), 0):
        return marks
    mark, seq = marks[-1]
    value = mark.get("value")
    if seq is not None or not is_int(value) or len(marks) > sc.MAX_EVENTS:
        return marks
    if not exactjson.equal(mark, overhead_mark(record["id"], record["end_ns"], int(value or 0))):
        return marks
    unit.overhead_ns = value
    return marks[:-1]


def fitting(
    records: list[Placed], most: int, space: int, at_least: int = 0
) -> tuple[tuple[list[Placed], int], list[Placed]]:
    """Split attached events into those that fit on the span, with their size, and the overflow.

    The size is approximate, in bytes. At least `at_least` events count as fitting, unless `most` is
    smaller.
    """
    size = 0
    number = 0
    for record, _ in records:
        record_size = 2 * len(exactjson.dumps(record))
        if number >= most or (size + record_size > space and number >= at_least):
            break
        size += record_size
        number += 1
    return (records[:number], size), records[number:]
