"""`PieceWriter`, the base class of the writers that encode spans from cached pieces of protobuf.

`PlacedWriter` writes batches whose records the plan places; `OwnWriter` writes batches that name
their session. If no cached pieces fit a record, both call the exact mappers.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from itertools import zip_longest
from struct import error as StructError  # noqa: N812

from msgspec import Raw
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from .... import semconv as sc
from ....ids import is_id
from ...placement.batch_placement import Plan
from ..header import Header, Origin, file_of, write_resource, write_scope
from ..options import SESSION_LAYOUT, Options
from ..pieces import (
    IntAttribute,
    TextAttribute,
    int_cpu,
    int_gpu,
    int_index,
    int_memory,
    int_pid,
    int_rank,
    int_seq,
    int_thread,
    pack_times,
    sized,
    span_users,
    text_id,
    text_parent,
)
from ..typed import EMPTY, NotCanonicalError, TypedBatch, TypedSpan
from ..values import is_int
from .batch_encoder import BatchEncoder
from .batch_fields import BatchLevelFields
from .fast_events import (
    NO_EVENTS,
    SMALL,
    AttachedEvents,
    event_fields,
    fits,
    record_of,
    sequence,
    with_seq,
)
from .synthetic import Carrier, write_carrier

ZERO = bytes(8)

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


class PieceWriter:
    """Writes the spans of one session as the fields of one ScopeSpans."""

    session: str
    """The session of all spans."""
    fields: BatchLevelFields

    def __init__(self, batch: TypedBatch, plan: Plan, name: str | None, options: Options) -> None:
        """Group the events by span; `name` is the name of the batch's file.

        Raises NotCanonicalError if the batch has no spans, if two spans have the same id, or if the
        resource cannot contain pid or rank.
        """
        self.batch, self.plan = batch, plan
        self.lengths = len(batch.spans), len(batch.marks), len(batch.snapshots)
        self.segmented = options.layout != SESSION_LAYOUT
        own_name = f"{batch.created_ns:020d}-{batch.batch_id}.json"
        self.file = file_of(name) if name != own_name else None
        self.spans = {span.id: span for span in batch.spans}
        self.attached: dict[str, AttachedEvents] = {}
        self.seqs = self.arrange()
        first = batch.spans[0] if batch.spans else None
        pids = (span.pid for span in batch.spans if span.pid is not None)
        ranks = (span.rank for span in batch.spans if span.rank is not None)
        self.pid, self.rank = (next(pids, None), next(ranks, None)) if first else (None, None)
        if not all(value is None or is_int(value) for value in (self.pid, self.rank)):
            raise NotCanonicalError
        self.parents: dict[tuple[str | None, bytes], tuple[bytes, bytes]] = {}
        self.common: dict[tuple[int | None, int | None, int | None], bytes] = {}
        """The attributes of scopes without costs, by thread, process and rank."""
        self.names: dict[str, bytes] = {}

    def arrange(self) -> list[int | None] | None:
        """Group marks and snapshots by scope; return the `seq` of each span.

        Returns None if the canonical order determines the order of the spans.
        """
        batch = self.batch
        if not batch.spans or len(self.spans) != len(batch.spans):
            raise NotCanonicalError
        for mark, seq in with_seq(batch.marks):
            self._events_of(mark.span_id)[0].append((mark, seq))
        for snapshot, seq in with_seq(batch.snapshots):
            self._events_of(snapshot.span_id)[1].append((snapshot, seq))
        return sequence([s.end_ns for s in batch.spans], [s.id for s in batch.spans])

    def _events_of(self, span_id: str) -> AttachedEvents:
        attached = self.attached.get(span_id)
        if attached is None:
            attached = self.attached[span_id] = ([], [])
        return attached

    def parent(self, parent_id: str | None, trace_id: bytes) -> tuple[bytes, bytes]:
        """Return the parent's field and, if needed, the attribute with the parent's explicit id."""
        if parent_id is None:
            return b"", b""
        if not is_id(parent_id) or parent_id.startswith("0" * 16):
            raise NotCanonicalError
        field = b"\x22\x08" + bytes.fromhex(parent_id[:16])
        derived = parent_id[16:] == trace_id[8:].hex()
        pieces = (field, b"" if derived else text_parent(parent_id))
        self.parents[parent_id, trace_id] = pieces
        return pieces

    def name(self, name: str) -> bytes:
        """Return the fields of a span's name and kind."""
        fields = self.names[name] = (b"\x2a" + sized(name.encode()) if name else b"") + b"\x30\x01"
        return fields

    def raw_ids(self) -> bytes:
        """Return the ids of all spans, 16 bytes each.

        Raises NotCanonicalError if one is malformed.
        """
        spans = self.batch.spans
        text = "".join([span.id for span in spans])
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raise NotCanonicalError from None
        # fromhex accepts capitals and white space: compare the text and the length of each id
        if raw.hex() != text or {len(span.id) for span in spans} != {32}:
            raise NotCanonicalError
        return raw

    def span(self, span: TypedSpan, raw: bytes, trace_id: bytes, seq: int | None) -> bytes:
        """Encode any kind of span from pieces, in the trace `trace_id`.

        Raises NotCanonicalError if pieces cannot express the span.
        """
        try:
            times = pack_times(0x39, span.start_ns, 0x41, span.end_ns)
        except StructError:
            raise NotCanonicalError from None
        if raw.startswith(ZERO) or span.start_ns == 0 or span.end_ns == 0:
            raise NotCanonicalError  # proto3 omits a zero
        parent_id = span.parent_id
        parent, attribute = self.parents.get((parent_id, trace_id)) or self.parent(
            parent_id, trace_id
        )
        name = self.names.get(span.name) or self.name(span.name)
        explicit_id = b"" if raw[8:] == trace_id[8:] else text_id(span.id)
        index = b"" if span.index is None else int_index(span.index)
        if span.cpu_ns is None and span.gpu_ns is None and span.memory_peak_bytes is None:
            key = (span.thread_id, span.pid, span.rank)
            costs = self.common.get(key) or self.make_common(span)
        else:
            costs = _costs(span, self.pid, self.rank)
        placed = b"" if seq is None else int_seq(seq)
        parts = [
            b"\x0a\x10", trace_id, b"\x12\x08", raw[:8], parent, name, times,
            explicit_id, attribute, index, costs, placed,
        ]  # fmt: skip
        attached = self.attached.pop(span.id, None)
        if attached is not None or span.mark_ids:
            event_fields(span, attached or NO_EVENTS, parts)
        elif span.attrs != EMPTY:
            parts.append(span_users(bytes(span.attrs)))
        return b"".join(parts)

    def make_common(self, span: TypedSpan) -> bytes:
        """Encode and cache the attributes that scopes without costs share."""
        costs = _costs(span, self.pid, self.rank)
        self.common[span.thread_id, span.pid, span.rank] = costs
        return costs

    @abstractmethod
    def write_spans(self, encoder: BatchEncoder[bytes]) -> list[bytes]:
        """Return the spans as protobuf fields, in pieces to be joined.

        Removes the events on these spans from `attached`.
        """

    def collect(self, encoder: BatchEncoder[bytes]) -> None:
        """Write the spans, and put the events of scopes outside the batch on carriers."""
        group = encoder.group(self.session)
        group.pid, group.rank = self.pid, self.rank
        group.spans = self.write_spans(encoder)
        for span_id, (marks, snapshots) in self.attached.items():
            if len(marks) + len(snapshots) > sc.MAX_EVENTS:
                raise NotCanonicalError
            trace_id, parent, session = encoder.outer_scope(span_id)
            if session != self.session:
                raise NotCanonicalError
            carrier = Carrier(encoder.next_ordinal(), trace_id, parent, span_id)
            carrier.marks = [(record_of(mark), seq) for mark, seq in marks]
            carrier.snapshots = [(record_of(snapshot), seq) for snapshot, seq in snapshots]
            encoder.add_carrier(carrier, session)

    def messages(self, encoder: BatchEncoder[bytes], header: Header) -> list[bytes]:
        """Return the only group, as a serialised TracesData."""
        if len(encoder.groups) > 1:
            raise NotCanonicalError
        group = encoder.groups[self.session]
        out: list[bytes] = group.spans
        for carrier, attached in zip_longest(group.carriers, self.attached.values()):
            span = Span()
            write_carrier(span, carrier, header)
            body = span.SerializeToString()
            if attached is not None and len(body) > SMALL and not fits(attached):
                raise NotCanonicalError
            out += (b"\x12", sized(body))
        for span in group.segment_links:
            out += (b"\x12", sized(span.SerializeToString()))
        resource = _resource(encoder.origin(self.session, group, header))
        scope_spans = b"\x0a" + sized(_scope(header)) + b"".join(out)
        message = b"\x0a" + sized(resource) + b"\x12" + sized(scope_spans)
        return [b"\x0a" + sized(message)]


def _costs(span: TypedSpan, pid: int | None, rank: int | None) -> bytes:
    """Encode the attributes of a span that are written between `index` and `seq`.

    `pid` and `rank` are the resource's values; they are omitted if the span has the same ones.
    """
    parts = []
    for value, attribute in (
        (span.thread_id, int_thread),
        (span.cpu_ns, int_cpu),
        (span.gpu_ns, int_gpu),
        (span.memory_peak_bytes, int_memory),
    ):
        if value is not None:
            parts.append(attribute(value))
    if span.pid != pid:
        parts.append(int_pid(_known(span.pid)))
    if span.rank != rank:
        parts.append(int_rank(_known(span.rank)))
    return b"".join(parts)


def _known(value: int | None) -> int:
    if value is None:
        raise NotCanonicalError
    return value


def batch_fields_of(
    batch: TypedBatch, file: str | None, options: Options, *, own_trace_ids: bool
) -> BatchLevelFields:
    """Return the batch-level fields of a typed batch."""
    fields = {
        "schema_version": batch.schema_version,
        "sdk_version": batch.sdk_version,
        "batch_id": batch.batch_id,
        "created_ns": batch.created_ns,
    }
    if isinstance(batch.otel, Raw):
        fields["otel"] = exactjson.loads(bytes(batch.otel))
    service_name = options.service_name
    return BatchLevelFields(
        fields, file=file, own_trace_ids=own_trace_ids, service_name=service_name
    )


def _resource(origin: Origin) -> bytes:
    if not origin.attributes:
        return _plain_resource(origin.session_id, origin.pid, origin.rank, origin.service_name)
    resource = Resource()
    write_resource(resource, origin)
    return bytes(resource.SerializeToString())


@lru_cache(maxsize=1024)
def _plain_resource(
    session: str | None, pid: int | None, rank: int | None, service_name: str | None
) -> bytes:
    resource = Resource()
    write_resource(resource, Origin(session, pid, rank, service_name))
    return bytes(resource.SerializeToString())


def _scope(header: Header) -> bytes:
    """Encode the header as `write_scope` does."""
    is_plain = (
        header.added_service_name == sc.DEFAULT_SERVICE_NAME
        and header.file is None
        and header.session is None
        and not (
            header.session_trace_id or header.trace_id or header.own_trace_ids or header.residual
        )
        and header.sdk_version
        and header.batch_id
    )
    if not is_plain:
        scope = InstrumentationScope()
        write_scope(scope, header)
        return bytes(scope.SerializeToString())
    counts = header.counts
    values = (counts.spans, counts.marks, counts.snapshots, counts.synthetic)
    ints = zip(_SCOPE_INTS, (header.created_ns, header.schema_version, *values), strict=True)
    version = b"\x12" + sized(str(header.sdk_version).encode())
    attributes = b"".join([attribute(value) for attribute, value in ints])  # type: ignore[arg-type]
    return _SCOPE_NAME + version + _scope_id(str(header.batch_id)) + attributes + _SCOPE_FLAG
