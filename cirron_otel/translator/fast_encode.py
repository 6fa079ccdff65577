"""Cirron → OTLP, the fast way: typed records to protobuf bytes out of cached pieces.

It gives the very bytes of `encode_batch`; what it has no piece for, one record at a time, it hands
to the exact mappers.
"""

from __future__ import annotations

from dataclasses import replace
from struct import error as StructError  # noqa: N812
from typing import Any, TypeVar

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .. import exactjson
from .. import semconv as sc
from ..ids import is_id
from . import events as ev
from . import rest as rests
from .encode import DEFAULT, SESSION_LAYOUT, Options
from .header import Counts, Header, Origin, write_resource, write_scope
from .order import sequence_of
from .pieces import (
    MARK_DOUBLE,
    MARK_ID_PREFIX,
    SHORT,
    event_users,
    int_cpu,
    int_gpu,
    int_index,
    int_memory,
    int_overhead,
    int_pid,
    int_rank,
    int_seq,
    int_thread,
    mark_int,
    mark_kind,
    mark_text,
    pack_double,
    pack_time,
    pack_times,
    sized,
    span_users,
    text_id,
    text_parent,
    varint,
)
from .placement import Place, Plan
from .spans import natural_parent, overhead_mark
from .synthetic import Carrier, write_carrier, write_seams
from .typed import (
    EMPTY,
    FallbackError,
    TypedBatch,
    TypedMark,
    TypedSnapshot,
    TypedSpan,
    decode,
    encode,
)
from .values import INT64_MAX, INT64_MIN, UINT64_MAX

_UNIT_DEPTHS = (1, 2)
_DEEPEST_UNIT = max(_UNIT_DEPTHS)
_ZERO = bytes(8)


def fast_encode(
    batch: TypedBatch, plan: Plan, name: str | None, options: Options = DEFAULT
) -> bytes:
    """A serialised TracesData of a batch. Raises FallbackError where `encode_batch` has to."""
    return _FastEncoder(batch, plan, name, options).run()


def typed_batch(data: bytes) -> TypedBatch:
    """The typed form of a batch's bytes. Raises FallbackError where it would not be exact."""
    batch = decode(data)
    if batch.schema_version != 1 or not 0 <= batch.created_ns <= INT64_MAX:
        raise FallbackError
    return batch


def _record(typed: TypedSpan | TypedMark | TypedSnapshot) -> dict[str, Any]:
    record = exactjson.loads(encode(typed))
    return record if isinstance(record, dict) else {}


_T = TypeVar("_T", TypedMark, TypedSnapshot)
_Riders = tuple[list[tuple[TypedMark, int | None]], list[tuple[TypedSnapshot, int | None]]]
"""Marks and snapshots of one scope, each with its `seq`."""

_NO_RIDERS: _Riders = ([], [])


def _sequence(times: list[int], ids: list[str]) -> list[int | None] | None:
    """The `seq` of each record; None where canonical order gives all of them."""
    keys = list(zip(times, ids, strict=True))
    if len(set(ids)) == len(ids) and keys == sorted(keys):
        return None
    return sequence_of(times, ids)


def _with_seq(records: list[_T]) -> list[tuple[_T, int | None]]:
    seqs = _sequence([r.ts_ns for r in records], [r.id for r in records])
    return [(r, None) for r in records] if seqs is None else list(zip(records, seqs, strict=True))


class _FastEncoder:
    def __init__(self, batch: TypedBatch, plan: Plan, name: str | None, options: Options) -> None:
        self.batch, self.plan = batch, plan
        self.segmented = options.layout != SESSION_LAYOUT
        self.spans = {span.id: span for span in batch.spans}
        self.riders: dict[str, _Riders] = {}
        self.seqs = self._arrange()
        own_name = f"{batch.created_ns:020d}-{batch.batch_id}.json"
        self.header = Header(
            batch.sdk_version,
            batch.batch_id,
            batch.created_ns,
            batch.schema_version,
            Counts(0, 0, 0, 0),
            file=name if name not in (None, own_name) else None,
            service_name_added=True,
        )
        self.service_name = options.service_name
        self.places: dict[str, Place] = {}
        self.children: dict[str | None, Place] = {}
        self.siblings: dict[str | None, tuple[bytes, bytes, bytes]] = {}
        """By parent: the ids' fields as far as siblings share them, and the ids' lower half."""
        self.session = self._place(batch.spans[0]).session if batch.spans else ""
        first = batch.spans[0] if batch.spans else None
        pids = (span.pid for span in batch.spans if span.pid is not None)
        ranks = (span.rank for span in batch.spans if span.rank is not None)
        self.pid, self.rank = (next(pids, None), next(ranks, None)) if first else (None, None)
        self.parents: dict[tuple[str | None, bytes], tuple[bytes, bytes]] = {}
        self.kinds: dict[str, bytes] = {}
        self.common: dict[tuple[int | None, int | None, int | None], bytes] = {}
        """Thread, process and rank of scopes without costs, as attributes."""
        self.names: dict[str, bytes] = {}

    def _arrange(self) -> list[int | None] | None:
        """Sort marks and snapshots by their scope; returns the `seq` of the spans."""
        batch = self.batch
        if not batch.spans or len(self.spans) != len(batch.spans):
            raise FallbackError
        for mark, seq in _with_seq(batch.marks):
            self._riders_of(mark.span_id)[0].append((mark, seq))
        for snapshot, seq in _with_seq(batch.snapshots):
            self._riders_of(snapshot.span_id)[1].append((snapshot, seq))
        return _sequence([s.end_ns for s in batch.spans], [s.id for s in batch.spans])

    def _riders_of(self, span_id: str) -> _Riders:
        riders = self.riders.get(span_id)
        if riders is None:
            riders = self.riders[span_id] = ([], [])
        return riders

    def run(self) -> bytes:
        out: list[bytes] = []
        opened: set[bytes] = set()
        seams: list[bytes] = []
        seqs, children, session = self.seqs, self.children, self.session
        has_seams = self.segmented and bool(self.plan.segments)
        ids, leaf = self._raw_ids(), self._leaf
        for number, span in enumerate(self.batch.spans):
            raw = ids[16 * number : 16 * number + 16]
            if seqs is None and leaf(span, raw, out):
                continue
            place = children.get(span.parent_id) or self._place(span)
            if place.session != session:
                raise FallbackError
            seq = seqs[number] if seqs is not None else None
            body = self._span(span, raw, place.trace_id, seq)
            if place.depth > _DEEPEST_UNIT:
                self._note_siblings(span, place)
            size = len(body)
            out += (b"\x12", SHORT[size] if size < 128 else varint(size), body)
            if has_seams and place.depth in _UNIT_DEPTHS:
                seams += self._seams(span, place, opened)
        carriers = self._carriers()
        for body in (*carriers, *seams):
            out += (b"\x12", sized(body))
        batch = self.batch
        counts = Counts(
            len(batch.spans), len(batch.marks), len(batch.snapshots), len(carriers) + len(seams)
        )
        scope = InstrumentationScope()
        write_scope(scope, replace(self.header, counts=counts))
        resource = Resource()
        write_resource(resource, Origin(self.session, self.pid, self.rank, self.service_name))
        spans = b"".join(out)
        scope_spans = b"\x0a" + sized(scope.SerializeToString()) + spans
        message = b"\x0a" + sized(resource.SerializeToString()) + b"\x12" + sized(scope_spans)
        return b"\x0a" + sized(message)

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
                raise FallbackError  # a circle
        for scope in reversed(chain):
            above = self.places[scope.id] = self._below(scope, above)
        if above is None:
            raise FallbackError
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

    # --- records --------------------------------------------------------------------------------

    def _parent(self, parent_id: str | None, trace_id: bytes) -> tuple[bytes, bytes]:
        """The field and the attribute of a parent."""
        if parent_id is None:
            return b"", b""
        if not is_id(parent_id) or parent_id.startswith("0" * 16):
            raise FallbackError
        field = b"\x22\x08" + bytes.fromhex(parent_id[:16])
        derived = parent_id[16:] == trace_id[8:].hex()
        made = (field, b"" if derived else text_parent(parent_id))
        self.parents[parent_id, trace_id] = made
        return made

    def _name(self, name: str) -> bytes:
        made = self.names[name] = (b"\x2a" + sized(name.encode()) if name else b"") + b"\x30\x01"
        return made

    def _raw_ids(self) -> bytes:
        """The ids of all spans, 16 bytes each, checked at once: well-formed and none zero."""
        spans = self.batch.spans
        text = "".join([span.id for span in spans])
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raise FallbackError from None
        # fromhex takes capitals and white space, too; the lengths of single ids add up otherwise
        if raw.hex() != text or {len(span.id) for span in spans} != {32}:
            raise FallbackError
        return raw

    def _note_siblings(self, span: TypedSpan, place: Place) -> None:
        """Keep what all siblings of a scope, of its name and thread, have in common."""
        trace_id, parent_id = place.trace_id, span.parent_id
        if span.cpu_ns is None and span.gpu_ns is None and span.memory_peak_bytes is None:
            field, attribute = self.parents[parent_id, trace_id]
            self.siblings[parent_id] = (b"\x0a\x10" + trace_id + b"\x12\x08", trace_id[8:], field)
            if attribute:
                del self.siblings[parent_id]

    def _leaf(self, span: TypedSpan, raw: bytes, out: list[bytes]) -> bool:
        """Add a scope like most: without index, marks, attributes and costs of its own.

        Returns False where it is not, or where nothing is known of its siblings yet.
        """
        shared = self.siblings.get(span.parent_id)
        name = self.names.get(span.name)
        costs = self.common.get((span.thread_id, span.pid, span.rank))
        start, end = span.start_ns, span.end_ns
        if shared is None or name is None or costs is None:
            return False
        head, lower, parent = shared
        if (
            not (span.index is None and span.cpu_ns is None and span.gpu_ns is None)
            or (span.memory_peak_bytes is not None or span.mark_ids or span.attrs != EMPTY)
            or (start <= 0 or end <= 0 or start > UINT64_MAX or end > UINT64_MAX)
            or (raw[8:] != lower or span.id in self.riders or raw.startswith(_ZERO))
        ):
            return False
        size = len(head) + 8 + len(parent) + len(name) + 18 + len(costs)
        length = SHORT[size] if size < 128 else varint(size)
        times = pack_times(0x39, start, 0x41, end)
        out += (b"\x12", length, head, raw[:8], parent, name, times, costs)
        return True

    def _span(self, span: TypedSpan, raw: bytes, trace_id: bytes, seq: int | None) -> bytes:
        try:
            times = pack_times(0x39, span.start_ns, 0x41, span.end_ns)
        except StructError:
            raise FallbackError from None
        if raw.startswith(_ZERO) or span.start_ns == 0 or span.end_ns == 0:
            raise FallbackError  # proto3 leaves a zero out
        parent_id = span.parent_id
        parent, attribute = self.parents.get((parent_id, trace_id)) or self._parent(
            parent_id, trace_id
        )
        name = self.names.get(span.name) or self._name(span.name)
        own = b"" if raw[8:] == trace_id[8:] else text_id(span.id)
        index = b"" if span.index is None else int_index(span.index)
        if span.cpu_ns is None and span.gpu_ns is None and span.memory_peak_bytes is None:
            key = (span.thread_id, span.pid, span.rank)
            costs = self.common.get(key) or self._common(span)
        else:
            costs = _costs(span, self.pid, self.rank)
        placed = b"" if seq is None else int_seq(seq)
        parts = [
            b"\x0a\x10", trace_id, b"\x12\x08", raw[:8], parent, name, times,
            own, attribute, index, costs, placed,
        ]  # fmt: skip
        riders = self.riders.pop(span.id, None)
        if riders is not None or span.mark_ids:
            self._with_riders(span, riders or _NO_RIDERS, parts)
        elif span.attrs != EMPTY:
            parts.append(span_users(bytes(span.attrs)))
        return b"".join(parts)

    def _common(self, span: TypedSpan) -> bytes:
        made = _costs(span, self.pid, self.rank)
        self.common[span.thread_id, span.pid, span.rank] = made
        return made

    def _with_riders(self, span: TypedSpan, riders: _Riders, parts: list[bytes]) -> None:
        marks, snapshots = riders
        if len(marks) + len(snapshots) > sc.MAX_EVENTS:
            raise FallbackError
        marks = _in_order(span.mark_ids, marks)
        overhead = _overhead(span, marks)
        decoded = tuple([mark.id for mark, _ in marks])
        if overhead is not None:
            parts.append(int_overhead(overhead))
            marks = marks[:-1]
        if span.attrs != EMPTY:
            parts.append(span_users(bytes(span.attrs)))
        if decoded != span.mark_ids:
            rested = Span()
            rest = rests.text_of({"set": {"mark_ids": list(span.mark_ids)}})
            rests.write(rested.attributes, sc.REST, rest)
            parts.append(rested.SerializeToString())
        size = 0
        for mark, seq in marks:
            event = self._mark(mark, seq)
            size += len(event)
            parts += (b"\x5a", varint(len(event)), event)
        for snapshot, seq in snapshots:
            event = _generic(ev.write_snapshot, snapshot, seq)
            size += len(event)
            parts += (b"\x5a", varint(len(event)), event)
        if size > sc.MAX_SPAN_BYTES // 4:
            raise FallbackError

    def _mark(self, mark: TypedMark, seq: int | None) -> bytes:
        try:
            if seq is not None or not is_id(mark.id) or mark.ts_ns <= 0:
                raise FallbackError
            value = _value(mark)
            kind = self.kinds.get(mark.kind)
            if kind is None:
                kind = self.kinds[mark.kind] = mark_kind(mark.kind)
            users = b"" if mark.attrs == EMPTY else event_users(bytes(mark.attrs))
            name = b"\x12" + sized(mark.name.encode()) if mark.name else b""
            time = pack_time(0x09, mark.ts_ns)
        except (FallbackError, StructError):
            return _generic(ev.write_mark, mark, seq)
        return b"".join((time, name, MARK_ID_PREFIX, mark.id.encode(), kind, value, users))

    def _carriers(self) -> list[bytes]:
        """Carriers for what belongs to scopes that are not in the batch."""
        made: list[bytes] = []
        for span_id, (marks, snapshots) in self.riders.items():
            if len(marks) + len(snapshots) > sc.MAX_EVENTS:
                raise FallbackError
            place = self.plan.outside(span_id)
            if place.session != self.session:
                raise FallbackError
            parent = b"" if span_id == "root" else natural_parent(span_id)
            carrier = Carrier(len(made), place.trace_id, parent, span_id)
            carrier.marks = [(_record(mark), seq) for mark, seq in marks]
            carrier.snapshots = [(_record(snapshot), seq) for snapshot, seq in snapshots]
            times = [m.ts_ns for m, _ in marks] + [s.ts_ns for s, _ in snapshots]
            times = [time for time in times if 0 <= time <= INT64_MAX]
            if times:
                carrier.start_ns, carrier.end_ns = min(times), max(times)
            span = Span()
            write_carrier(span, carrier, self.header)
            body = span.SerializeToString()
            if len(body) > sc.MAX_SPAN_BYTES // 4:
                raise FallbackError
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
        raise FallbackError
    return value


def _in_order(
    mark_ids: tuple[str, ...], marks: list[tuple[TypedMark, int | None]]
) -> list[tuple[TypedMark, int | None]]:
    if len(mark_ids) != len(marks) or tuple([m.id for m, _ in marks]) == mark_ids:
        return marks
    by_id = {placed[0].id: placed for placed in marks}
    if len(by_id) != len(marks) or by_id.keys() != set(mark_ids):
        return marks
    return [by_id[mark_id] for mark_id in mark_ids]


def _overhead(span: TypedSpan, marks: list[tuple[TypedMark, int | None]]) -> int | None:
    """The value of the SDK's own overhead mark where it is the last one and just that."""
    if not marks or marks[-1][0].name != sc.OVERHEAD_NS or marks[-1][1] is not None:
        return None
    mark = _record(marks[-1][0])
    value = mark["value"]
    if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
        return None
    expected = overhead_mark(span.id, span.end_ns, value)
    return value if exactjson.equal(mark, expected) else None


def _value(mark: TypedMark) -> bytes:
    """A mark's value as an attribute. Raises FallbackError where its text needs more than that."""
    token = bytes(mark.value)
    kind = mark.value_type
    if mark.value_nonfinite is not None and isinstance(mark.value_nonfinite, str):
        raise FallbackError
    if kind == "float":
        try:
            number = float(token)
        except ValueError:
            raise FallbackError from None
        if repr(number).encode() != token and type(exactjson.loads(token)) is not float:
            raise FallbackError
        return MARK_DOUBLE + pack_double(number)
    value = exactjson.loads(token)
    if kind == "int" and type(value) is int:
        return mark_int(value)
    if kind == "string" and isinstance(value, str):
        return mark_text(value)
    raise FallbackError


def _generic(write: Any, typed: TypedMark | TypedSnapshot, seq: int | None) -> bytes:
    event = Span.Event()
    write(event, _record(typed), typed.span_id, seq)
    return bytes(event.SerializeToString())
