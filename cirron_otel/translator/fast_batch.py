"""Typed records to protobuf bytes out of cached pieces: what every batch has in common."""

from __future__ import annotations

from struct import error as StructError  # noqa: N812

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .. import semconv as sc
from ..ids import is_id
from .encode import SESSION_LAYOUT, Options
from .fast_events import NO_RIDERS, SMALL, Riders, fits, record_of, rider_fields, sequence, with_seq
from .header import Header, file_of
from .pieces import (
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
from .placement import Place, Plan
from .spans import natural_parent
from .synthetic import Carrier, write_carrier
from .typed import EMPTY, NotCanonicalError, TypedBatch, TypedSpan
from .values import INT64_MAX, is_int

ZERO = bytes(8)


class FastEncoder:
    """The records of one batch as fields of one ScopeSpans."""

    session: str
    """The session of all of them."""
    header: Header
    """For ids that are derived from it; its counts are not known yet."""

    def __init__(self, batch: TypedBatch, plan: Plan, name: str | None, options: Options) -> None:
        """Group the events by span.

        Raises NotCanonicalError if two spans have one id, or the resource cannot hold pid or rank.
        """
        self.batch, self.plan = batch, plan
        self.service_name = options.service_name
        self.segmented = options.layout != SESSION_LAYOUT
        own_name = f"{batch.created_ns:020d}-{batch.batch_id}.json"
        self.file = file_of(name) if name != own_name else None
        self.spans = {span.id: span for span in batch.spans}
        self.riders: dict[str, Riders] = {}
        self.seqs = self.arrange()
        first = batch.spans[0] if batch.spans else None
        pids = (span.pid for span in batch.spans if span.pid is not None)
        ranks = (span.rank for span in batch.spans if span.rank is not None)
        self.pid, self.rank = (next(pids, None), next(ranks, None)) if first else (None, None)
        if not all(value is None or is_int(value) for value in (self.pid, self.rank)):
            raise NotCanonicalError
        self.parents: dict[tuple[str | None, bytes], tuple[bytes, bytes]] = {}
        self.common: dict[tuple[int | None, int | None, int | None], bytes] = {}
        """Thread, process and rank of scopes without costs, as attributes."""
        self.names: dict[str, bytes] = {}

    def arrange(self) -> list[int | None] | None:
        """Sort marks and snapshots by their scope; returns the `seq` of the spans."""
        batch = self.batch
        if not batch.spans or len(self.spans) != len(batch.spans):
            raise NotCanonicalError
        for mark, seq in with_seq(batch.marks):
            self._riders_of(mark.span_id)[0].append((mark, seq))
        for snapshot, seq in with_seq(batch.snapshots):
            self._riders_of(snapshot.span_id)[1].append((snapshot, seq))
        return sequence([s.end_ns for s in batch.spans], [s.id for s in batch.spans])

    def _riders_of(self, span_id: str) -> Riders:
        riders = self.riders.get(span_id)
        if riders is None:
            riders = self.riders[span_id] = ([], [])
        return riders

    def parent(self, parent_id: str | None, trace_id: bytes) -> tuple[bytes, bytes]:
        """The field and the attribute of a parent."""
        if parent_id is None:
            return b"", b""
        if not is_id(parent_id) or parent_id.startswith("0" * 16):
            raise NotCanonicalError
        field = b"\x22\x08" + bytes.fromhex(parent_id[:16])
        derived = parent_id[16:] == trace_id[8:].hex()
        made = (field, b"" if derived else text_parent(parent_id))
        self.parents[parent_id, trace_id] = made
        return made

    def name(self, name: str) -> bytes:
        """The field of a name, and that of the kind."""
        made = self.names[name] = (b"\x2a" + sized(name.encode()) if name else b"") + b"\x30\x01"
        return made

    def raw_ids(self) -> bytes:
        """The ids of all spans, 16 bytes each, checked at once: well-formed and none zero."""
        spans = self.batch.spans
        text = "".join([span.id for span in spans])
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raise NotCanonicalError from None
        # fromhex takes capitals and white space, too; the lengths of single ids add up otherwise
        if raw.hex() != text or {len(span.id) for span in spans} != {32}:
            raise NotCanonicalError
        return raw

    def span(self, span: TypedSpan, raw: bytes, trace_id: bytes, seq: int | None) -> bytes:
        """A span of any kind that the pieces can say, in a trace."""
        try:
            times = pack_times(0x39, span.start_ns, 0x41, span.end_ns)
        except StructError:
            raise NotCanonicalError from None
        if raw.startswith(ZERO) or span.start_ns == 0 or span.end_ns == 0:
            raise NotCanonicalError  # proto3 leaves a zero out
        parent_id = span.parent_id
        parent, attribute = self.parents.get((parent_id, trace_id)) or self.parent(
            parent_id, trace_id
        )
        name = self.names.get(span.name) or self.name(span.name)
        own = b"" if raw[8:] == trace_id[8:] else text_id(span.id)
        index = b"" if span.index is None else int_index(span.index)
        if span.cpu_ns is None and span.gpu_ns is None and span.memory_peak_bytes is None:
            key = (span.thread_id, span.pid, span.rank)
            costs = self.common.get(key) or self.make_common(span)
        else:
            costs = _costs(span, self.pid, self.rank)
        placed = b"" if seq is None else int_seq(seq)
        parts = [
            b"\x0a\x10", trace_id, b"\x12\x08", raw[:8], parent, name, times,
            own, attribute, index, costs, placed,
        ]  # fmt: skip
        riders = self.riders.pop(span.id, None)
        if riders is not None or span.mark_ids:
            rider_fields(span, riders or NO_RIDERS, parts)
        elif span.attrs != EMPTY:
            parts.append(span_users(bytes(span.attrs)))
        return b"".join(parts)

    def make_common(self, span: TypedSpan) -> bytes:
        """The attributes of a scope without costs, as far as others share them."""
        made = _costs(span, self.pid, self.rank)
        self.common[span.thread_id, span.pid, span.rank] = made
        return made

    def trace_of(self, place: Place) -> bytes:
        """The trace of a place: with the layout `session` that of its session."""
        return place.trace_id if self.segmented else self.plan.session_trace(place.session)

    def carriers(self) -> list[bytes]:
        """Carriers for what belongs to scopes that are not in the batch."""
        made: list[bytes] = []
        for span_id, (marks, snapshots) in self.riders.items():
            if len(marks) + len(snapshots) > sc.MAX_EVENTS:
                raise NotCanonicalError
            place = self.plan.outside(span_id)
            if place.session != self.session:
                raise NotCanonicalError
            parent = b"" if span_id == "root" else natural_parent(span_id)
            trace_id = self.trace_of(place)
            carrier = Carrier(len(made), trace_id, parent, span_id)
            carrier.marks = [(record_of(mark), seq) for mark, seq in marks]
            carrier.snapshots = [(record_of(snapshot), seq) for snapshot, seq in snapshots]
            times = [m.ts_ns for m, _ in marks] + [s.ts_ns for s, _ in snapshots]
            times = [time for time in times if 0 <= time <= INT64_MAX]
            if times:
                carrier.start_ns, carrier.end_ns = min(times), max(times)
            span = Span()
            write_carrier(span, carrier, self.header)
            body = span.SerializeToString()
            if len(body) > SMALL and not fits((marks, snapshots)):
                raise NotCanonicalError
            made.append(body)
        return made


def _costs(span: TypedSpan, pid: int | None, rank: int | None) -> bytes:
    """The attributes between `index` and `seq`; `pid` and `rank` are those of the resource."""
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


def traces_data(resource: bytes, scope: bytes, spans: bytes) -> bytes:
    """A TracesData of one resource with one scope, of serialised messages."""
    scope_spans = b"\x0a" + sized(scope) + spans
    message = b"\x0a" + sized(resource) + b"\x12" + sized(scope_spans)
    return b"\x0a" + sized(message)
