"""Cirron → OTLP, the fast way: typed records to protobuf bytes out of cached pieces.

It gives the very bytes of `encode_batch`; what it has no piece for, one record at a time, it hands
to the exact mappers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

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
from .pieces import (
    MARK_DOUBLE,
    MARK_ID_PREFIX,
    event_users,
    int_cpu,
    int_gpu,
    int_index,
    int_memory,
    int_overhead,
    int_pid,
    int_rank,
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
from .values import INT64_MAX

_UNIT_DEPTHS = (1, 2)


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


def _increasing(keys: Iterable[tuple[int, str]]) -> bool:
    last = (-1, "")
    for key in keys:
        if key <= last:
            return False
        last = key
    return True


class _FastEncoder:
    def __init__(self, batch: TypedBatch, plan: Plan, name: str | None, options: Options) -> None:
        self.batch, self.plan = batch, plan
        self.segmented = options.layout != SESSION_LAYOUT
        self.spans = {span.id: span for span in batch.spans}
        self.riders: dict[str, tuple[list[TypedMark], list[TypedSnapshot]]] = {}
        self._check_order()
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
        self.session = self._place(batch.spans[0]).session if batch.spans else ""
        first = batch.spans[0] if batch.spans else None
        pids = (span.pid for span in batch.spans if span.pid is not None)
        ranks = (span.rank for span in batch.spans if span.rank is not None)
        self.pid, self.rank = (next(pids, None), next(ranks, None)) if first else (None, None)
        self.parents: dict[tuple[str, bytes], tuple[bytes, bytes]] = {}
        self.kinds: dict[str, bytes] = {}
        self.names: dict[str, bytes] = {}

    def _check_order(self) -> None:
        batch = self.batch
        if not batch.spans or len(self.spans) != len(batch.spans):
            raise FallbackError
        if not _increasing((span.end_ns, span.id) for span in batch.spans):
            raise FallbackError
        for which, records in enumerate((batch.marks, batch.snapshots)):
            if not records:
                continue
            if len({record.id for record in records}) != len(records):
                raise FallbackError
            if not _increasing((record.ts_ns, record.id) for record in records):
                raise FallbackError
            for record in records:
                riders = self.riders.get(record.span_id)
                if riders is None:
                    riders = self.riders[record.span_id] = ([], [])
                riders[which].append(record)  # type: ignore[arg-type]

    def run(self) -> bytes:
        out: list[bytes] = []
        opened: set[bytes] = set()
        seams: list[bytes] = []
        for span in self.batch.spans:
            place = self.places.get(span.id) or self._place(span)
            if place.session != self.session:
                raise FallbackError
            body = self._span(span, place)
            out += (b"\x12", varint(len(body)), body)
            if self.segmented and place.depth in _UNIT_DEPTHS and self.plan.segments:
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
        assert above is not None  # noqa: S101 - the chain is not empty
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

    def _parent(self, parent_id: str, trace_id: bytes) -> tuple[bytes, bytes]:
        """The field and the attribute of a parent."""
        made = self.parents.get((parent_id, trace_id))
        if made is None:
            if not is_id(parent_id) or parent_id.startswith("0" * 16):
                raise FallbackError
            field = b"\x22\x08" + bytes.fromhex(parent_id[:16])
            derived = parent_id[16:] == trace_id[8:].hex()
            made = (field, b"" if derived else text_parent(parent_id))
            self.parents[parent_id, trace_id] = made
        return made

    def _span(self, span: TypedSpan, place: Place) -> bytes:
        own, trace_id = span.id, place.trace_id
        if not is_id(own) or own.startswith("0000000000000000"):
            raise FallbackError
        parent = attribute = b""
        if span.parent_id is not None:
            parent, attribute = self._parent(span.parent_id, trace_id)
        name = self.names.get(span.name)
        if name is None:
            name = b"\x2a" + sized(span.name.encode()) if span.name else b""
            self.names[span.name] = name = name + b"\x30\x01"
        if span.start_ns <= 0 or span.end_ns <= 0:
            raise FallbackError
        try:
            times = pack_times(0x39, span.start_ns, 0x41, span.end_ns)
        except Exception:
            raise FallbackError from None
        parts = [b"\x0a\x10", trace_id, b"\x12\x08", bytes.fromhex(own[:16]), parent, name, times]
        if own[16:] != trace_id[8:].hex():
            parts.append(text_id(own))
        if attribute:
            parts.append(attribute)
        if span.index is not None:
            parts.append(int_index(span.index))
        if span.thread_id is not None:
            parts.append(int_thread(span.thread_id))
        if span.cpu_ns is not None:
            parts.append(int_cpu(span.cpu_ns))
        if span.gpu_ns is not None:
            parts.append(int_gpu(span.gpu_ns))
        if span.memory_peak_bytes is not None:
            parts.append(int_memory(span.memory_peak_bytes))
        if span.pid != self.pid:
            parts.append(int_pid(_known(span.pid)))
        if span.rank != self.rank:
            parts.append(int_rank(_known(span.rank)))
        riders = self.riders.pop(own, None)
        if riders is not None or span.mark_ids:
            self._with_riders(span, riders or ([], []), parts)
        elif span.attrs != EMPTY:
            parts.append(span_users(bytes(span.attrs)))
        return b"".join(parts)

    def _with_riders(
        self,
        span: TypedSpan,
        riders: tuple[list[TypedMark], list[TypedSnapshot]],
        parts: list[bytes],
    ) -> None:
        marks, snapshots = riders
        if len(marks) + len(snapshots) > sc.MAX_EVENTS:
            raise FallbackError
        marks = _in_order(span.mark_ids, marks)
        if marks and marks[-1].name == sc.OVERHEAD_NS:
            mark = _record(marks[-1])
            value = mark["value"]
            if type(value) is int and exactjson.equal(
                mark, overhead_mark(span.id, span.end_ns, value)
            ):
                parts.append(int_overhead(value))
                marks = marks[:-1]
        if span.attrs != EMPTY:
            parts.append(span_users(bytes(span.attrs)))
        decoded = [mark.id for mark in marks]
        if len(marks) < len(riders[0]):
            decoded.append(overhead_mark(span.id, 0, 0)["id"])
        if decoded != span.mark_ids:
            rest = rests.text_of({"set": {"mark_ids": span.mark_ids}})
            rested = Span()
            rests.write(rested.attributes, sc.REST, rest)
            parts.append(rested.SerializeToString())
        events = [self._mark(mark) for mark in marks]
        events += [_generic(ev.write_snapshot, snapshot) for snapshot in snapshots]
        if sum(map(len, events)) > sc.MAX_SPAN_BYTES // 4:
            raise FallbackError
        parts += [b"\x5a" + sized(event) for event in events]

    def _mark(self, mark: TypedMark) -> bytes:
        try:
            value = _value(mark)
            if not is_id(mark.id) or mark.ts_ns <= 0:
                raise FallbackError
            kind = self.kinds.get(mark.kind)
            if kind is None:
                kind = self.kinds[mark.kind] = mark_kind(mark.kind)
            users = b"" if mark.attrs == EMPTY else event_users(bytes(mark.attrs))
            name = b"\x12" + sized(mark.name.encode()) if mark.name else b""
            time = pack_time(0x09, mark.ts_ns)
        except (FallbackError, OverflowError):
            return _generic(ev.write_mark, mark)
        return b"".join((time, name, MARK_ID_PREFIX, mark.id.encode(), kind, value, users))

    def _carriers(self) -> list[bytes]:
        """Carriers for what belongs to scopes that are not in the batch."""
        made = []
        for span_id, (marks, snapshots) in self.riders.items():
            if len(marks) + len(snapshots) > sc.MAX_EVENTS:
                raise FallbackError
            place = self.plan.outside(span_id)
            if place.session != self.session:
                raise FallbackError
            parent = b"" if span_id == "root" else natural_parent(span_id)
            carrier = Carrier(len(made), place.trace_id, parent, span_id)
            carrier.marks = [(_record(mark), None) for mark in marks]
            carrier.snapshots = [(_record(snapshot), None) for snapshot in snapshots]
            times = [r.ts_ns for r in (*marks, *snapshots) if 0 <= r.ts_ns <= INT64_MAX]
            if times:
                carrier.start_ns, carrier.end_ns = min(times), max(times)
            span = Span()
            write_carrier(span, carrier, self.header)
            body = span.SerializeToString()
            if len(body) > sc.MAX_SPAN_BYTES // 4:
                raise FallbackError
            made.append(body)
        return made


def _known(value: int | None) -> int:
    if value is None:
        raise FallbackError
    return value


def _in_order(mark_ids: list[str], marks: list[TypedMark]) -> list[TypedMark]:
    if len(mark_ids) != len(marks) or [mark.id for mark in marks] == mark_ids:
        return marks
    by_id = {mark.id: mark for mark in marks}
    if by_id.keys() != set(mark_ids):
        return marks
    return [by_id[mark_id] for mark_id in mark_ids]


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


def _generic(write: Any, typed: TypedMark | TypedSnapshot) -> bytes:
    event = Span.Event()
    write(event, _record(typed), typed.span_id, None)
    return bytes(event.SerializeToString())

