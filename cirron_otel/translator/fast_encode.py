"""Cirron → OTLP, the fast way: typed records to protobuf bytes out of cached pieces.

It gives the very bytes of `encode_batch`; what it has no piece for, one record at a time, it hands
to the exact mappers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from msgspec import UNSET
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from .. import semconv as sc
from .encode import DEFAULT, DEFAULT_SERVICE_NAME, Options
from .fast_batch import ZERO, FastEncoder, traces_data
from .fast_own import OwnEncoder
from .header import Counts, Header, Origin, write_resource, write_scope
from .pieces import (
    ID_PREFIX,
    SHORT,
    IntAttribute,
    TextAttribute,
    pack_times,
    sized,
    span_users,
    varint,
)
from .placement import UNIT_DEPTHS, Place, Plan
from .synthetic import write_seams
from .typed import EMPTY, NotCanonicalError, TypedBatch, TypedSpan, decode
from .values import INT64_MAX, UINT64_MAX

_DEEPEST_UNIT = max(UNIT_DEPTHS)


_SCOPE_TAG = b"\x1a"
_SCOPE_NAME = b"\x0a" + sized(sc.SCOPE_NAME.encode())
_scope_id = TextAttribute(_SCOPE_TAG, sc.BATCH_ID)
_SCOPE_INTS = [
    IntAttribute(_SCOPE_TAG, key)
    for key in (
        sc.BATCH_CREATED,
        sc.SCHEMA,
        sc.BATCH_SPANS,
        sc.BATCH_MARKS,
        sc.BATCH_SNAPSHOTS,
        sc.BATCH_SYNTHETIC,
    )
]
_SCOPE_FLAG = _SCOPE_TAG + sized(
    b"\x0a" + sized(sc.SERVICE_NAME_ADDED.encode()) + b"\x12\x02\x10\x01"
)


@lru_cache(maxsize=1024)
def _resource_of(session: str, pid: int | None, rank: int | None, service_name: str) -> bytes:
    resource = Resource()
    write_resource(resource, Origin(session, pid, rank, service_name))
    return bytes(resource.SerializeToString())


def fast_encode(
    batch: TypedBatch, plan: Plan, name: str | None, options: Options = DEFAULT
) -> bytes:
    """Encode a batch as a serialised TracesData.

    Raises NotCanonicalError if only `encode_batch` can encode it.
    """
    if plan.told is not None:
        return OwnEncoder(batch, plan, name, options).run()
    return _PlacedEncoder(batch, plan, name, options).run()


def typed_batch(data: bytes) -> TypedBatch:
    """The typed form of a batch's bytes. Raises NotCanonicalError where it would not be exact."""
    batch = decode(data)
    if batch.schema_version != 1 or not 0 <= batch.created_ns <= INT64_MAX:
        raise NotCanonicalError
    return batch


class _PlacedEncoder(FastEncoder):
    """A batch whose records stand where the plan says."""

    def __init__(self, batch: TypedBatch, plan: Plan, name: str | None, options: Options) -> None:
        super().__init__(batch, plan, name, options)
        if batch.otel is not UNSET or any(s.otel is not UNSET for s in batch.spans):
            raise NotCanonicalError
        self.header = Header(
            batch.sdk_version,
            batch.batch_id,
            batch.created_ns,
            batch.schema_version,
            Counts(0, 0, 0, 0),
            file=self.file,
            added_service_name=options.service_name,
        )
        self.places: dict[str, Place] = {}
        self.children: dict[str | None, Place] = {}
        self.siblings: dict[str | None, tuple[bytes, bytes, bytes, bytes]] = {}
        """By parent: the trace's field, its lower half, the parent's field and attribute."""
        self.session = self._place(batch.spans[0]).session

    def run(self) -> bytes:
        out: list[bytes] = []
        opened: set[bytes] = set()
        seams: list[bytes] = []
        seqs, children, session = self.seqs, self.children, self.session
        has_seams = self.segmented and bool(self.plan.segments)
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
            if has_seams and place.depth in UNIT_DEPTHS:
                seams += self._seams(span, place, opened)
        carriers = self.carriers()
        for body in (*carriers, *seams):
            out += (b"\x12", sized(body))
        batch = self.batch
        counts = Counts(
            len(batch.spans), len(batch.marks), len(batch.snapshots), len(carriers) + len(seams)
        )
        scope = self._scope(counts)
        resource = _resource_of(self.session, self.pid, self.rank, self.service_name)
        return traces_data(resource, scope, b"".join(out))

    def _scope(self, counts: Counts) -> bytes:
        """Encode the header as `write_scope` does."""
        header = self.header
        is_default = self.service_name == DEFAULT_SERVICE_NAME
        if header.file is not None or not (header.sdk_version and header.batch_id and is_default):
            scope = InstrumentationScope()
            write_scope(scope, replace(header, counts=counts))
            return bytes(scope.SerializeToString())
        told = zip(
            _SCOPE_INTS,
            (header.created_ns, 1, counts.spans, counts.marks, counts.snapshots, counts.synthetic),
            strict=True,
        )
        version = b"\x12" + sized(str(header.sdk_version).encode())
        ints = b"".join([attribute(value) for attribute, value in told])  # type: ignore[arg-type]
        return _SCOPE_NAME + version + _scope_id(str(header.batch_id)) + ints + _SCOPE_FLAG

    # --- places ---------------------------------------------------------------------------------

    def _place(self, span: TypedSpan) -> Place:
        known = self.places.get(span.id)
        if known is not None:
            return known
        chain = [span]
        above: Place | None = None
        while True:
            parent_id = chain[-1].parent_id
            if parent_id is None:
                break
            above = self.places.get(parent_id)
            if above is not None:
                break
            parent = self.spans.get(parent_id)
            if parent is None:
                above = self.plan.outside(parent_id)
                break
            chain.append(parent)
            if len(chain) > len(self.spans):
                raise NotCanonicalError  # a circle
        for scope in reversed(chain):
            above = self.places[scope.id] = self._below(scope, above)
        if above is None:
            raise NotCanonicalError
        if above.depth > _DEEPEST_UNIT:
            self.children[span.parent_id] = above  # its siblings stand there as well
        return above

    def _below(self, span: TypedSpan, above: Place | None) -> Place:
        if above is not None:
            return self.plan.below(above, span.start_ns, span.id)
        if span.id in self.plan.external:
            return self.plan.external[span.id]
        if span.is_session() and span.id:
            return Place(span.id, self.plan.session_trace(span.id), 0)
        return self.plan.below(self.plan.outside(None), span.start_ns, span.id)

    def _seams(self, span: TypedSpan, place: Place, opened: set[bytes]) -> list[bytes]:
        segment = self.plan.segment_of(place.session, span.start_ns, span.id)
        if segment is None or segment[:2] != (span.start_ns, span.id):
            return []
        if segment.trace_id in opened:
            return []
        opened.add(segment.trace_id)
        parent = segment.parent_id
        inside = self.spans.get(parent) if parent is not None else None
        above = self._place(inside) if inside is not None else self.plan.outside(parent)
        trace_id = self.plan.session_trace(place.session)
        made = write_seams(place.session, trace_id, segment, above.trace_id)
        return [message.SerializeToString() for message in made]

    # --- leaves ---------------------------------------------------------------------------------

    def _siblings(self, span: TypedSpan) -> tuple[bytes, bytes, bytes, bytes] | None:
        """What all siblings of a scope have in common; None where a segment may part them."""
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
            or (span.id in self.riders or raw.startswith(ZERO))
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
