"""OTLP → Cirron, the fast way: the bytes of one whole batch, as our encoder writes it, to JSON.

It reads the wire in the order in which the encoder writes it and takes nothing else: whatever is
not exactly so (another order, an unknown field, a part of a batch, a value that rests beside)
raises FallbackError, and `decode` does it the exact way. So what it accepts needs no second proof.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple, TypeVar

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Raw
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .. import exactjson
from .. import semconv as sc
from ..ids import is_id, span_id_for
from . import events as ev
from .decode import assembly_key
from .header import Header, Origin, read_resource, read_scope
from .pieces import (
    MARK_DOUBLE,
    MARK_ID_PREFIX,
    int_index,
    mark_kind,
    span_texts,
    text_id,
    text_parent,
)
from .spans import overhead_mark
from .synthetic import read_synthetic
from .typed import EMPTY, FallbackError, TypedMark, TypedSnapshot, encode
from .values import INT64_MAX, UnsayableError, read_typed

_HEAD = Struct("<H16sH8sH").unpack_from
_LEAF = Struct("<H16sH8sH8sBB").unpack_from
_TIMES = Struct("<HBQBQ").unpack_from
_TIME = Struct("<BQ").unpack_from
_DOUBLE = Struct("<d").unpack_from
_ZERO = bytes(8)
_EMPTY_STATUS = b"\x7a\x00"

_INT_FIELDS = {
    sc.THREAD_ID: 0,
    sc.CPU_NS: 1,
    sc.GPU_NS: 2,
    sc.MEMORY_PEAK: 3,
    sc.PROCESS_PID: 4,
    sc.RANK: 5,
    sc.OVERHEAD_NS: 6,
}
_SYNTHETIC_SLOT, _USERS = -1, -2
_ID_FIELD, _PARENT_FIELD = text_id.prefix(32), text_parent.prefix(32)
_ID_SIZE, _PARENT_SIZE = len(_ID_FIELD) + 32, len(_PARENT_FIELD) + 32
_INDEX_KEY = int_index(0)[2:-3]


class _Tail(NamedTuple):
    """What the attributes of a span say, its ids and its index aside."""

    json: str
    """The fields from `cpu_ns` to `attrs`."""
    overhead: int | None


_SYNTHETIC = _Tail("", None)


_CACHED = 8192


class Whole(NamedTuple):
    """A batch that came in one piece."""

    name: str
    data: bytes
    """The batch as JSON."""
    key: bytes
    """What its parts would have in common, if any came again."""
    spans: int
    marks: int
    snapshots: int


def _length(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at` and where it ends."""
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    shift = 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            if byte == 0:
                raise FallbackError  # not the shortest form
            return value, at + 1
        shift += 7
        if shift > 63:
            raise FallbackError


def _field(data: bytes, at: int, tag: int) -> tuple[int, int]:
    """Where the length-delimited field with this tag begins and ends."""
    if at >= len(data) or data[at] != tag:
        raise FallbackError
    size, start = _length(data, at + 1)
    end = start + size
    if end > len(data):
        raise FallbackError
    return start, end


def fast_decode(data: bytes) -> Whole:
    """The one whole batch in a serialised TracesData. Raises FallbackError for anything else."""
    try:
        return _decode(data)
    except (IndexError, StructError, UnicodeDecodeError, DecodeError, UnsayableError):
        raise FallbackError from None


def _decode(data: bytes) -> Whole:
    start, end = _field(data, 0, 0x0A)
    resource_start, resource_end = _field(data, start, 0x0A)
    spans_start, spans_end = _field(data, resource_end, 0x12)
    if end != len(data) or spans_end != end:
        raise FallbackError
    scope_start, scope_end = _field(data, spans_start, 0x0A)
    scope = InstrumentationScope.FromString(data[scope_start:scope_end])
    header = read_scope(scope)
    if header is None or header.rest or header.own_trace_ids or header.trace_id:
        raise FallbackError
    origin = _origin(data[resource_start:resource_end], header)
    if origin is None or origin.attributes or header.schema_version != 1:
        raise FallbackError
    if not isinstance(header.batch_id, str) or not isinstance(header.created_ns, int):
        raise FallbackError
    return _FastDecoder(data, header, origin).run(scope_end, spans_end)


_origins: dict[tuple[bytes, bool], Origin | None] = {}


def _origin(resource: bytes, header: Header) -> Origin | None:
    """What a resource says; a process sends the same one with every batch."""
    key = (resource, header.service_name_added)
    if key not in _origins:
        if len(_origins) >= _CACHED:
            _origins.clear()
        _origins[key] = read_resource(Resource.FromString(resource), header)
    return _origins[key]


class _FastDecoder:
    def __init__(self, data: bytes, header: Header, origin: Origin) -> None:
        self.data, self.header, self.origin = data, header, origin
        self.spans: list[str] = []
        """Each as JSON, made as msgspec would make it of a TypedSpan."""
        self.order: list[tuple[int, str]] = []
        self.marks: list[TypedMark] = []
        self.snapshots: list[TypedSnapshot] = []
        self.synthetic = 0
        self.lowers: dict[bytes, str] = {}
        self.parents: dict[bytes, str] = {}
        self.names: dict[bytes, str] = {}
        self.common = b"\0"
        """The attributes of the span before, which are most often those of the next one."""
        self.common_tail = _Tail("", None)

    def run(self, at: int, end: int) -> Whole:
        self._spans(at, end)
        header = self.header
        found = (len(self.spans), len(self.marks), len(self.snapshots), self.synthetic)
        counts = header.counts
        if found != (counts.spans, counts.marks, counts.snapshots, counts.synthetic):
            raise FallbackError
        self._check_order()
        name = header.file or f"{header.created_ns:020d}-{header.batch_id}.json"
        return Whole(name, self._batch(), assembly_key(header, self.origin), *found[:3])

    def _spans(self, at: int, end: int) -> None:
        """All spans: here those like most others, leaves with the attributes of the one before."""
        data = self.data
        names, parents, lowers = self.names, self.parents, self.lowers
        add, add_order = self.spans.append, self.order.append
        while at < end:
            if data[at] != 0x12:
                raise FallbackError
            size = data[at + 1]
            at += 2
            if size > 127:
                size, at = _length(data, at - 1)
            stop = at + size
            if size < 40:
                raise FallbackError
            tag, trace_id, tag2, span_id, tag3, above, tag4, length = _LEAF(data, at)
            first = at + 40 + length
            if (
                stop != first + 20 + len(self.common)
                or not data.startswith(self.common, first + 20)
                or (tag != 0x100A or tag2 != 0x0812 or tag3 != 0x0822 or tag4 != 0x2A)
            ):
                self._span(at, stop)
                at = stop
                continue
            kind, tag5, start_ns, tag6, end_ns = _TIMES(data, first)
            name = names.get(data[at + 40 : first])
            parent, lower = parents.get(above), lowers.get(trace_id)
            if (
                (name and parent and lower and start_ns and end_ns and span_id != _ZERO)
                and (kind == 0x0130 and tag5 == 0x39 and tag6 == 0x41 and length < 128)
                and self.common_tail.overhead is None
            ):
                own = span_id.hex() + lower
                add(
                    f'{{"id":"{own}","name":{name},"parent_id":"{parent}{lower}","index":null,'
                    f'"start_ns":{start_ns},"end_ns":{end_ns},{self.common_tail.json},'
                    '"mark_ids":[]}'
                )
                add_order((end_ns, own))
            else:
                self._span(at, stop)
            at = stop
        if at != end:
            raise FallbackError

    def _batch(self) -> bytes:
        header = self.header
        version, batch_id = encode(header.sdk_version), encode(header.batch_id)
        pieces = (
            b'{"schema_version":1,"sdk_version":', version, b',"batch_id":', batch_id,
            b',"created_ns":', encode(header.created_ns),
            b',"spans":[', ",".join(self.spans).encode(),
            b'],"marks":', encode(self.marks), b',"snapshots":', encode(self.snapshots), b"}",
        )  # fmt: skip
        return b"".join(pieces)

    def _check_order(self) -> None:
        """Canonical order, which is what a batch without `seq` stands in; ids are unique."""
        order = self.order
        if order != sorted(order) or len({own for _, own in order}) != len(order):
            raise FallbackError
        self.marks.sort(key=_time_and_id)
        self.snapshots.sort(key=_time_and_id)
        for ids in ([m.id for m in self.marks], [s.id for s in self.snapshots]):
            if len(set(ids)) != len(ids):
                raise FallbackError

    def _span(self, at: int, end: int) -> None:
        data, first = self.data, at
        trace_tag, trace_id, span_tag, span_id, next_tag = _HEAD(data, at)
        if trace_tag != 0x100A or span_tag != 0x0812 or span_id == _ZERO:
            raise FallbackError
        lower = self.lowers.get(trace_id) or self._lower(trace_id)
        at += 28
        parent = None
        parent_span = b""
        if next_tag == 0x0822:
            parent_span = data[at + 2 : at + 10]
            parent = self.parents.get(parent_span) or self._parent(parent_span)
            parent += lower
            at += 10
        name = '""'
        if data[at] == 0x2A:
            size = data[at + 1]
            if size > 127:
                raise FallbackError
            at += 2 + size
            text = data[at - size : at]
            name = self.names.get(text) or self._name(text)
        kind, start_tag, start_ns, end_tag, end_ns = _TIMES(data, at)
        at += 20
        if kind != 0x0130 or start_tag != 0x39 or end_tag != 0x41 or not start_ns or not end_ns:
            raise FallbackError
        own = span_id.hex() + lower
        if data.startswith(_ID_FIELD, at):
            at += _ID_SIZE
            own = _other(data[at - 32 : at].decode(), own, span_id)
        if parent is not None and data.startswith(_PARENT_FIELD, at):
            at += _PARENT_SIZE
            parent = _other(data[at - 32 : at].decode(), parent, parent_span)
        index: int | str = "null"
        if data.startswith(_INDEX_KEY, at + 2):
            index, at = self._index(at)
        events = at + len(self.common)
        if data.startswith(self.common, at) and (events == end or data[events] == 0x5A):
            tail = self.common_tail
        else:
            tail, events = self._tail(at, end)
            if tail is _SYNTHETIC:
                self._take_synthetic(first, end)
                return
        mark_ids = ""
        if events < end or tail.overhead is not None:
            mark_ids = self._riders(events, end, own, end_ns, tail.overhead)
        above = "null" if parent is None else f'"{parent}"'
        self.spans.append(
            f'{{"id":"{own}","name":{name},"parent_id":{above},"index":{index},'
            f'"start_ns":{start_ns},"end_ns":{end_ns},{tail.json},"mark_ids":[{mark_ids}]}}'
        )
        self.order.append((end_ns, own))

    def _riders(self, at: int, end: int, own: str, end_ns: int, overhead: int | None) -> str:
        mark_ids = self._events(at, end, own) if at < end else []
        if overhead is not None:
            mark = _typed(TypedMark, overhead_mark(own, end_ns, overhead), None)
            self.marks.append(mark)
            mark_ids.append(mark.id)
        return encode(mark_ids).decode()[1:-1]

    def _lower(self, trace_id: bytes) -> str:
        lower = self.lowers[trace_id] = trace_id[8:].hex()
        return lower

    def _parent(self, span_id: bytes) -> str:
        if span_id == _ZERO:
            raise FallbackError
        made = self.parents[span_id] = span_id.hex()
        return made

    def _name(self, text: bytes) -> str:
        if not text:
            raise FallbackError
        made = self.names[text] = encode(text.decode()).decode()
        return made

    def _index(self, at: int) -> tuple[int, int]:
        """The value of the attribute `cirron.index` at `at`, and where it ends."""
        data = self.data
        size = data[at + 1]
        start = at + 2 + len(_INDEX_KEY)
        value, end = _length(data, start + 2)
        if data[start + 1] != 0x18 or data[start] != end - start - 1 or end != at + 2 + size:
            raise FallbackError
        if value > INT64_MAX:
            raise FallbackError
        return value, end

    def _tail(self, at: int, end: int) -> tuple[_Tail, int]:
        """What the attributes from `at` on say, and where the events begin."""
        data, first = self.data, at
        fields: list[int | None] = [None] * len(_INT_FIELDS)
        while at < end and data[at] == 0x4A:
            size = data[at + 1]
            body = data[at + 2 : at + 2 + size]
            slot, value = (_USERS, 0) if size > 127 else _attributes.get(body) or _attribute(body)
            if slot == _SYNTHETIC_SLOT:
                return _SYNTHETIC, end
            if slot == _USERS:
                break
            if fields[slot] is not None:
                raise FallbackError
            fields[slot] = value
            at += 2 + size
        users = at
        while at < end and data[at] == 0x4A:
            _, at = _field(data, at, 0x4A)
        attrs = b"{}" if users == at else span_texts(data[users:at])
        thread, cpu, gpu, memory, pid, rank, overhead = fields
        origin = self.origin
        pid = origin.pid if pid is None else _differing(pid, origin.pid)
        rank = origin.rank if rank is None else _differing(rank, origin.rank)
        told = {"cpu_ns": cpu, "gpu_ns": gpu, "memory_peak_bytes": memory}
        told |= {"thread_id": thread, "pid": pid, "rank": rank}
        text = encode(told).decode()[1:-1]
        tail = _Tail(f'{text},"attrs":{attrs.decode()}', overhead)
        self.common, self.common_tail = data[first:at] or b"\0", tail
        if at == end - 2 and data[at:end] == _EMPTY_STATUS:
            at = end
        return tail, at

    def _take_synthetic(self, at: int, end: int) -> None:
        carrier = read_synthetic(Span.FromString(self.data[at:end]), self.header)
        self.synthetic += 1
        if carrier is None:
            return
        if carrier.rest is not None:
            raise FallbackError
        for mark, seq in carrier.marks:
            self.marks.append(_typed(TypedMark, mark, seq))
        for snapshot, seq in carrier.snapshots:
            self.snapshots.append(_typed(TypedSnapshot, snapshot, seq))

    def _events(self, at: int, end: int, span_id: str) -> list[str]:
        data = self.data
        mark_ids: list[str] = []
        snapshots = False
        while at < end and data[at] == 0x5A:
            size, start = _length(data, at + 1)
            at = start + size
            body = data[start:at]
            mark = _mark(body, span_id)
            if mark is None:
                event = Span.Event.FromString(body)
                if ev.kind_of(event) == ev.SNAPSHOT:
                    snapshots = True
                    self.snapshots.append(_snapshot(event, body, span_id))
                    continue
                mark = _exact_mark(event, body, span_id)
            if snapshots:
                raise FallbackError  # marks stand before snapshots
            mark_ids.append(mark.id)
            self.marks.append(mark)
        if at != end and data[at:end] != _EMPTY_STATUS:
            raise FallbackError
        return mark_ids


_attributes: dict[bytes, tuple[int, int]] = {}


def _attribute(body: bytes) -> tuple[int, int]:
    """Which of our int attributes a KeyValue is, and its value."""
    pair_owner = Span.FromString(b"\x4a" + bytes([len(body)]) + body)
    (pair,) = pair_owner.attributes
    result = (_USERS, 0)
    slot = _INT_FIELDS.get(pair.key)
    if slot is not None:
        value = read_typed({pair.key: pair.value}, pair.key, "int_value")
        if value is None or pair_owner.SerializeToString()[2:] != body:
            raise FallbackError
        result = (slot, value)
    elif pair.key == sc.SYNTHETIC:
        result = (_SYNTHETIC_SLOT, 0)
    if result[0] != _USERS and len(_attributes) < _CACHED:
        _attributes[body] = result
    return result


def _other(told: str, derived: str, span_id: bytes) -> str:
    """An id that stands beside the one the rule derives: it must be another, and its own."""
    if not is_id(told) or told == derived or span_id_for(told) != span_id:
        raise FallbackError
    return told


def _differing(value: int, default: int | None) -> int:
    if value == default:
        raise FallbackError
    return value


_kinds: dict[bytes, str] = {}
for _kind in ("point", "summary"):
    _kinds[mark_kind(_kind)] = _kind


def _mark(body: bytes, span_id: str) -> TypedMark | None:
    """A mark with a float value and no attributes, the usual one; None for any other event."""
    tag, ts_ns = _TIME(body, 0)
    if tag != 0x09 or body[9] != 0x12 or not ts_ns:
        return None
    size = body[10]
    if size > 127 or size == 0:
        return None
    at = 11 + size
    name = body[11:at].decode()
    prefix = len(MARK_ID_PREFIX)
    if body[at : at + prefix] != MARK_ID_PREFIX:
        return None
    at += prefix
    own = body[at : at + 32].decode()
    at += 32
    double = len(body) - 8
    for made in _kinds:
        if body.startswith(made, at):
            at += len(made)
            break
    else:
        return None
    if at + len(MARK_DOUBLE) != double or body[at:double] != MARK_DOUBLE or not is_id(own):
        return None
    (value,) = _DOUBLE(body, double)
    if value != value or value in (float("inf"), float("-inf")):
        return None
    return TypedMark(own, span_id, name, "float", Raw(encode(value)), EMPTY, ts_ns, _kinds[made])


_T = TypeVar("_T", TypedMark, TypedSnapshot)


def _time_and_id(record: TypedMark | TypedSnapshot) -> tuple[int, str]:
    return record.ts_ns, record.id


def _typed(kind: type[_T], record: ev.Record, seq: int | None) -> _T:
    """A record that the exact mapper read, typed; FallbackError where the types do not hold it."""
    if seq is not None:
        raise FallbackError
    data = exactjson.dumps(record)
    try:
        typed = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        raise FallbackError from None
    if not exactjson.equal(exactjson.loads(encode(typed)), record):
        raise FallbackError
    return typed


def _exact_mark(event: Span.Event, body: bytes, span_id: str) -> TypedMark:
    mark, seq = ev.read_mark(event, span_id)
    again = Span.Event()
    ev.write_mark(again, mark, span_id, seq)
    if again.SerializeToString() != body:
        raise FallbackError
    return _typed(TypedMark, mark, seq)


def _snapshot(event: Span.Event, body: bytes, span_id: str) -> TypedSnapshot:
    snapshot, seq = ev.read_snapshot(event, span_id)
    again = Span.Event()
    ev.write_snapshot(again, snapshot, span_id, seq)
    if again.SerializeToString() != body:
        raise FallbackError
    return _typed(TypedSnapshot, snapshot, seq)
