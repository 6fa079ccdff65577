"""Cirron → OTLP on the fast path: typed records to protobuf bytes from cached pieces.

The bytes are those of `encode_batch`. A record without a cached piece goes to the exact mappers.
"""

from __future__ import annotations

from msgspec import UNSET

from ...placement.batch_placement import UNIT_DEPTHS, Plan, RecordPlacement
from ..options import DEFAULT, Options
from ..pieces import ID_PREFIX, SHORT, pack_times, span_users, varint
from ..typed import EMPTY, NotCanonicalError, TypedBatch, TypedSpan, decode
from ..values import INT64_MAX, UINT64_MAX
from .batch_encoder import BatchEncoder
from .fast_batch import ZERO, PieceWriter, batch_fields_of
from .fast_own import OwnWriter

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
    """Return the typed form of a batch's bytes. Raises NotCanonicalError if it is not exact."""
    batch = decode(data)
    if batch.schema_version != 1 or not 0 <= batch.created_ns <= INT64_MAX:
        raise NotCanonicalError
    return batch


class PlacedWriter(PieceWriter):
    """Encodes a batch that does not name its session; `plan` determines each record's position."""

    def __init__(self, batch: TypedBatch, plan: Plan, name: str | None, options: Options) -> None:
        """Raises NotCanonicalError if only `encode_batch` can encode the batch."""
        super().__init__(batch, plan, name, options)
        if batch.otel is not UNSET or any(s.otel is not UNSET for s in batch.spans):
            raise NotCanonicalError
        self.fields = batch_fields_of(batch, self.file, options, own_trace_ids=False)
        self.places: dict[str, RecordPlacement] = {}
        self.children: dict[str | None, RecordPlacement] = {}
        self.siblings: dict[str | None, tuple[bytes, bytes, bytes, bytes]] = {}
        """By parent: the trace's field, its lower half, the parent's field and attribute."""
        self.session = self._place(batch.spans[0]).session

    def write_spans(self, encoder: BatchEncoder[bytes]) -> list[bytes]:
        """Return the spans as fields, in pieces."""
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
        """Return the fields that siblings share; None if a segment may open between them."""
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
        """Add a common scope: one without index, marks and costs.

        Returns False for any other scope, and if none of its siblings has been read.
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
