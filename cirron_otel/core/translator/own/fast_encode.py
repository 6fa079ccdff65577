"""Cirron → OTLP on the fast path: encode typed records from cached pieces of protobuf.

`fast_encode` writes the same bytes as `encode_batch`. It uses `OwnWriter` for a batch that names
its session and `PlacedWriter` for any other batch. A record that no cached pieces fit is
encoded by the exact mappers.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import UNSET, Raw
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from .... import semconv as sc
from ....semconv import SESSION
from ...placement.batch_placement import UNIT_DEPTHS, Plan, RecordPlacement, stated_trace
from ..header import Counts
from ..options import DEFAULT, Options
from ..pieces import (
    ID_PREFIX,
    SHORT,
    int_index,
    int_overhead,
    pack_times,
    sized,
    span_users,
    varint,
)
from ..typed import EMPTY, NotCanonicalError, TypedBatch, TypedSpan, decode
from ..values import INT64_MAX, UINT64_MAX
from .batch_encoder import BatchEncoder, fitting, in_order_of, take_overhead
from .fast_batch import ZERO, PieceWriter, batch_fields_of
from .fast_events import overhead_of, record_of
from .parts import PART
from .spans import SpanSet, Wire, wire_parent, write_span


class OwnWriter(PieceWriter):
    """Writes a batch that names its session.

    The batch contains the trace of each record, so records need not be placed. A span whose `otel`
    contains more than a trace id is encoded by the exact mapper.
    """

    def __init__(self, batch: TypedBatch, plan: Plan, name: str | None, options: Options) -> None:
        """Raises NotCanonicalError if only `encode_batch` can encode the batch."""
        super().__init__(batch, plan, name, options)
        self.session = plan.default
        if any(s.parent_id is None and self._is_alien(s) for s in batch.spans):
            raise NotCanonicalError
        self._traces: dict[bytes, bytes] = {}
        """Trace ids, by the text of each `otel` that contains only a trace id."""
        own_trace_ids = self._read_traces()
        self.fields = batch_fields_of(batch, self.file, options, own_trace_ids=own_trace_ids)
        if PART in self.fields.otel:
            raise NotCanonicalError
        self._trace_id = (
            self.fields.trace_id if self.segmented else plan.session_trace(self.session)
        )
        if not self._trace_id or (own_trace_ids and not self.segmented):
            raise NotCanonicalError
        self._head = b"\x0a\x10" + self._trace_id + b"\x12\x08"
        self._above: dict[str | None, tuple[bytes, bytes]] = {}
        """The field and the attribute of each parent in the batch's own trace, by the parent's id.
        """

    def _is_alien(self, span: TypedSpan) -> bool:
        """Return whether a span without a parent is the root of another session."""
        return span.name == SESSION and span.id != self.session

    def _read_traces(self) -> bool:
        """Collect the trace ids in the `otel` of spans; return whether any span has a trace id."""
        own_trace_ids = False
        for text in {bytes(s.otel) for s in self.batch.spans if isinstance(s.otel, Raw)}:
            otel = exactjson.loads(text)
            if isinstance(otel, dict) and "trace_id" in otel:
                own_trace_ids = True
                trace_id = stated_trace(otel["trace_id"])
                if trace_id and len(otel) == 1:
                    self._traces[text] = trace_id
        return own_trace_ids

    def write_spans(self, encoder: BatchEncoder[bytes]) -> list[bytes]:
        """Return the spans as protobuf fields, in pieces to be joined."""
        out: list[bytes] = []
        seqs, leaf, ids = self.seqs, self._leaf, self.raw_ids()
        wire: Wire | None = None
        for number, span in enumerate(self.batch.spans):
            raw = ids[16 * number : 16 * number + 16]
            seq = None if seqs is None else seqs[number]
            if span.otel is UNSET:
                if seq is None and leaf(span, raw, out):
                    continue
                body = self.span(span, raw, self._trace_id, seq)
            else:
                own_trace = self._traces.get(bytes(span.otel))
                if own_trace is None or own_trace == self._trace_id:
                    wire = wire or self._wire(encoder)
                    body = self._exactly(span, wire, own_trace or self._trace_id, seq)
                else:
                    body = self.span(span, raw, own_trace, seq)
            out += (b"\x12", sized(body))
        return out

    def _wire(self, encoder: BatchEncoder[bytes]) -> Wire:
        """Return the batch's values that the exact mapper needs. The counts have no effect."""
        header = self.fields.header(Counts(0, 0, 0, 0))
        origin = encoder.origin(self.session, encoder.group(self.session), header)
        return Wire(self._trace_id, b"", header, origin)

    def _leaf(self, span: TypedSpan, raw: bytes, out: list[bytes]) -> bool:
        """Add a scope without costs, attributes, or marks other than the SDK's overhead mark.

        Returns False for any other scope, and if the scope's name or its attributes (thread,
        process, rank) are not cached yet.
        """
        parent_pieces = self._above.get(span.parent_id) or self._learn(span.parent_id)
        name = self.names.get(span.name)
        costs = self.common.get((span.thread_id, span.pid, span.rank))
        start, end = span.start_ns, span.end_ns
        if name is None or costs is None:
            return False
        if (
            (span.cpu_ns is not None or span.gpu_ns is not None)
            or (span.memory_peak_bytes is not None or span.attrs != EMPTY)
            or (start <= 0 or end <= 0 or start > UINT64_MAX or end > UINT64_MAX)
            or raw.startswith(ZERO)
        ):
            return False
        parent, attribute = parent_pieces
        attached = self.attached.get(span.id)
        if attached is not None:
            marks, snapshots = attached
            if len(marks) != 1 or snapshots or span.mark_ids != (marks[0][0].id,):
                return False
            value = overhead_of(span, marks[0][0]) if marks[0][1] is None else None
            if value is None:
                return False
            del self.attached[span.id]
            costs += int_overhead(value)
        elif span.mark_ids:
            return False
        if span.index is not None:
            costs = int_index(span.index) + costs
        if raw[8:] != self._trace_id[8:]:
            attribute = ID_PREFIX + span.id.encode() + attribute
        times = pack_times(0x39, start, 0x41, end)
        # 20 bytes of the trace's id and its field, 8 of the own id, 18 of the times
        size = 46 + len(parent) + len(name) + len(attribute) + len(costs)
        length = SHORT[size] if size < 128 else varint(size)
        out += (b"\x12", length, self._head, raw[:8], parent, name, times, attribute, costs)
        return True

    def _learn(self, parent_id: str | None) -> tuple[bytes, bytes]:
        """Cache a parent's field and attribute for the scopes that follow; return both."""
        pieces = self._above[parent_id] = self.parent(parent_id, self._trace_id)
        return pieces

    def _exactly(self, span: TypedSpan, wire: Wire, trace_id: bytes, seq: int | None) -> bytes:
        """Encode a span with the exact mapper. Raises NotCanonicalError if its events overflow."""
        record = record_of(span)
        attached = self.attached.pop(span.id, ([], []))
        placed = [(record_of(mark), number) for mark, number in attached[0]]
        unit = SpanSet(record, seq)
        marks = take_overhead(unit, in_order_of(record.get("mark_ids"), placed))
        size = 2 * len(exactjson.dumps(record))
        (unit.marks, marks_size), over = fitting(marks, sc.MAX_EVENTS, sc.MAX_SPAN_BYTES - size)
        (unit.snapshots, _), more = fitting(
            [(record_of(snapshot), number) for snapshot, number in attached[1]],
            sc.MAX_EVENTS - len(unit.marks),
            sc.MAX_SPAN_BYTES - size - marks_size,
        )
        if over or more:
            raise NotCanonicalError
        otel = record.get("otel")
        own_trace = stated_trace(otel.get("trace_id")) if isinstance(otel, dict) else b""
        wire_span = Span()
        write_span(
            wire_span,
            unit,
            replace(wire, trace_id=own_trace or trace_id, parent=wire_parent(record)),
        )
        return bytes(wire_span.SerializeToString())


_DEEPEST_UNIT = max(UNIT_DEPTHS)


def fast_encode(
    batch: TypedBatch, plan: Plan, name: str | None, options: Options = DEFAULT
) -> bytes:
    """Encode a batch as a serialised TracesData.

    Raises NotCanonicalError if only `encode_batch` can encode it.
    """
    writer_type = PlacedWriter if plan.stated is None else OwnWriter
    writer: PieceWriter = writer_type(batch, plan, name, options)
    [message] = BatchEncoder(writer, plan, options).encode()
    return message


def typed_batch(data: bytes) -> TypedBatch:
    """Decode a batch's JSON into a typed batch.

    Raises NotCanonicalError if the fast path cannot represent the batch exactly.
    """
    batch = decode(data)
    if batch.schema_version != 1 or not 0 <= batch.created_ns <= INT64_MAX:
        raise NotCanonicalError
    return batch


class PlacedWriter(PieceWriter):
    """Writes a batch that does not name its session; the plan places each record."""

    def __init__(self, batch: TypedBatch, plan: Plan, name: str | None, options: Options) -> None:
        """Raises NotCanonicalError if only `encode_batch` can encode the batch."""
        super().__init__(batch, plan, name, options)
        if batch.otel is not UNSET or any(s.otel is not UNSET for s in batch.spans):
            raise NotCanonicalError
        self.fields = batch_fields_of(batch, self.file, options, own_trace_ids=False)
        self.places: dict[str, RecordPlacement] = {}
        self.children: dict[str | None, RecordPlacement] = {}
        self.siblings: dict[str | None, tuple[bytes, bytes, bytes, bytes]] = {}
        """The field and lower half of the trace id, and the parent's field and attribute, by the
        parent's id.
        """
        self.session = self._place(batch.spans[0]).session

    def write_spans(self, encoder: BatchEncoder[bytes]) -> list[bytes]:
        """Return the spans as protobuf fields, in pieces to be joined."""
        out: list[bytes] = []
        encoder.first_place = self.places[self.batch.spans[0].id]
        seqs, children, session = self.seqs, self.children, self.session
        has_segments = self.segmented and bool(self.plan.segments)
        ids, leaf = self.raw_ids(), self._leaf
        for number, span in enumerate(self.batch.spans):
            raw = ids[16 * number : 16 * number + 16]
            if seqs is None and leaf(span, raw, out):
                continue
            place = children.get(span.parent_id) or self._place(span)
            if place.session != session:
                raise NotCanonicalError
            seq = seqs[number] if seqs is not None else None
            body = self.span(span, raw, place.trace_id, seq)
            size = len(body)
            out += (b"\x12", SHORT[size] if size < 128 else varint(size), body)
            if has_segments and place.depth in UNIT_DEPTHS:
                encoder.open_segment(place, span.start_ns, span.id, self._place_of)
        return out

    def _place_of(self, span_id: str) -> RecordPlacement | None:
        span = self.spans.get(span_id)
        return self._place(span) if span is not None else None

    def _place(self, span: TypedSpan) -> RecordPlacement:
        known = self.places.get(span.id)
        if known is not None:
            return known
        chain = [span]
        place: RecordPlacement | None = None
        while True:
            parent_id = chain[-1].parent_id
            if parent_id is None:
                break
            place = self.places.get(parent_id)
            if place is not None:
                break
            parent = self.spans.get(parent_id)
            if parent is None:
                place = self.plan.outside(parent_id)
                break
            chain.append(parent)
            if len(chain) > len(self.spans):
                raise NotCanonicalError  # a cycle of parents
        for scope in reversed(chain):
            place = self.places[scope.id] = self.plan.place(
                place, scope.id, scope.parent_id, scope.start_ns, is_session=scope.is_session()
            )
        if place is None:
            raise NotCanonicalError
        if place.depth > _DEEPEST_UNIT:
            self.children[span.parent_id] = place  # its siblings have the same place
        return place

    def _siblings(self, span: TypedSpan) -> tuple[bytes, bytes, bytes, bytes] | None:
        """Return the pieces that siblings share; None if a segment may open between them."""
        place, parent_id = self._place(span), span.parent_id
        if place.session != self.session:
            raise NotCanonicalError
        if place.depth <= _DEEPEST_UNIT:
            return None
        trace_id = place.trace_id
        parent = self.parents.get((parent_id, trace_id)) or self.parent(parent_id, trace_id)
        shared = (b"\x0a\x10" + trace_id + b"\x12\x08", trace_id[8:], *parent)
        self.siblings[parent_id] = shared
        return shared

    def _leaf(self, span: TypedSpan, raw: bytes, out: list[bytes]) -> bool:
        """Add a scope without index, marks and costs, whose siblings' pieces are cached.

        Returns False for any other scope.
        """
        shared = self.siblings.get(span.parent_id)
        if shared is None and span.index is None:
            shared = self._siblings(span)
        name = self.names.get(span.name)
        costs = self.common.get((span.thread_id, span.pid, span.rank))
        start, end = span.start_ns, span.end_ns
        if shared is None or name is None or costs is None:
            return False
        head, lower, parent, attribute = shared
        if (
            not (span.index is None and span.cpu_ns is None and span.gpu_ns is None)
            or (span.memory_peak_bytes is not None or span.mark_ids)
            or (start <= 0 or end <= 0 or start > UINT64_MAX or end > UINT64_MAX)
            or (span.id in self.attached or raw.startswith(ZERO))
        ):
            return False
        if raw[8:] != lower:
            attribute = ID_PREFIX + span.id.encode() + attribute
        if span.attrs != EMPTY:
            costs += span_users(bytes(span.attrs))
        times = pack_times(0x39, start, 0x41, end)
        # 20 bytes of the trace's id and its field, 8 of the own id, 18 of the times
        size = 46 + len(parent) + len(name) + len(attribute) + len(costs)
        length = SHORT[size] if size < 128 else varint(size)
        out += (b"\x12", length, head, raw[:8], parent, name, times, attribute, costs)
        return True
