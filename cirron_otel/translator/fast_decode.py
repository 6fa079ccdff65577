"""OTLP → Cirron, the fast way: the bytes of one whole batch, as our encoder writes it, to JSON.

It reads the wire in the order in which the encoder writes it and takes nothing else: whatever is
not exactly so (another order, an unknown field, a part of a batch, a value that rests beside)
raises FallbackError, and `decode` does it the exact way. So what it accepts needs no second proof.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from . import events as ev
from .decode import assembly_key
from .fast_wire import (
    INT_FIELDS,
    SYNTHETIC_SLOT,
    USERS_SLOT,
    attribute,
    attributes,
    differing,
    exact_mark,
    exact_snapshot,
    field_at,
    length_at,
    other,
    plain_mark,
    time_and_id,
    typed_record,
)
from .header import Header, Origin, read_resource, read_scope
from .pieces import (
    ID_PREFIX,
    PARENT_PREFIX,
    int_index,
    span_texts,
)
from .spans import overhead_mark
from .synthetic import read_synthetic
from .typed import FallbackError, TypedMark, TypedSnapshot, encode
from .values import INT64_MAX, UnsayableError

_HEAD = Struct("<H16sH8sH").unpack_from
_LEAF = Struct("<H16sH8sH8sBB").unpack_from
_TIMES = Struct("<HBQBQ").unpack_from
_ZERO = bytes(8)
_EMPTY_STATUS = b"\x7a\x00"

_ID_FIELD, _PARENT_FIELD = ID_PREFIX, PARENT_PREFIX
_ID_SIZE, _PARENT_SIZE = len(_ID_FIELD) + 32, len(_PARENT_FIELD) + 32
_IDS_SIZE = _ID_SIZE + _PARENT_SIZE
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


def fast_decode(data: bytes) -> Whole:
    """The one whole batch in a serialised TracesData. Raises FallbackError for anything else."""
    try:
        return _decode(data)
    except (IndexError, StructError, UnicodeDecodeError, DecodeError, UnsayableError):
        raise FallbackError from None


def _decode(data: bytes) -> Whole:
    start, end = field_at(data, 0, 0x0A)
    resource_start, resource_end = field_at(data, start, 0x0A)
    spans_start, spans_end = field_at(data, resource_end, 0x12)
    if end != len(data) or spans_end != end:
        raise FallbackError
    scope_start, scope_end = field_at(data, spans_start, 0x0A)
    scope = InstrumentationScope.FromString(data[scope_start:scope_end])
    header = read_scope(scope)
    if header is None or header.rest or header.own_trace_ids or header.trace_id:
        raise FallbackError
    origin = _origin(data[resource_start:resource_end], header)
    if origin is None or origin.attributes or header.schema_version != 1:
        raise FallbackError
    created_ns = header.created_ns
    if not isinstance(header.batch_id, str) or not isinstance(created_ns, int) or created_ns < 0:
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


def _hex(text: str) -> str:
    """What is left of hex digits when they are read and written again."""
    try:
        return bytes.fromhex(text).hex()
    except ValueError:
        return ""


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
        self.told_parents: dict[str, str] = {}
        """Ids that were checked: what stood on the wire, and what the rule derives there."""
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
        told_ids: list[str] = []
        while at < end:
            if data[at] != 0x12:
                raise FallbackError
            size = data[at + 1]
            at += 2
            if size > 127:
                size, at = length_at(data, at - 1)
            stop = at + size
            if size < 40:
                raise FallbackError
            tag, trace_id, tag2, span_id, tag3, above, tag4, length = _LEAF(data, at)
            first = at + 40 + length
            rest = first + 20
            own = upper = ""
            if (
                stop - rest == _IDS_SIZE + len(self.common)
                and data.startswith(_ID_FIELD, rest)
                and data.startswith(_PARENT_FIELD, rest + _ID_SIZE)
            ):
                rest += _IDS_SIZE
                own = data[rest - _PARENT_SIZE - 32 : rest - _PARENT_SIZE].decode()
                upper = data[rest - 32 : rest].decode()
            if (
                stop != rest + len(self.common)
                or not data.startswith(self.common, rest)
                or (tag != 0x100A or tag2 != 0x0812 or tag3 != 0x0822 or tag4 != 0x2A)
            ):
                self._span(at, stop)
                at = stop
                continue
            kind, tag5, start_ns, tag6, end_ns = _TIMES(data, first)
            name = names.get(data[at + 40 : first])
            parent = parents.get(above) or self._parent(above)
            lower = lowers.get(trace_id) or self._lower(trace_id)
            if (
                (name and start_ns and end_ns and span_id != _ZERO)
                and (kind == 0x0130 and tag5 == 0x39 and tag6 == 0x41 and length < 128)
                and self.common_tail.overhead is None
            ):
                parent += lower
                derived = span_id.hex() + lower
                if own:
                    if own[:16] != derived[:16] or own == derived:
                        raise FallbackError
                    told_ids.append(own)
                    derived = own
                    parent = self._known_parent(upper, parent, above)
                own = derived
                add(
                    f'{{"id":"{own}","name":{name},"parent_id":"{parent}","index":null,'
                    f'"start_ns":{start_ns},"end_ns":{end_ns},{self.common_tail.json},'
                    '"mark_ids":[]}'
                )
                add_order((end_ns, own))
            else:
                self._span(at, stop)
            at = stop
        text = "".join(told_ids)
        if at != end or _hex(text) != text:
            raise FallbackError

    def _known_parent(self, told: str, derived: str, span_id: bytes) -> str:
        """A parent's id that stands beside the one the rule derives."""
        if self.told_parents.get(told) != derived:
            other(told, derived, span_id)
            self.told_parents[told] = derived
        return told

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
        self.marks.sort(key=time_and_id)
        self.snapshots.sort(key=time_and_id)
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
            own = other(data[at - 32 : at].decode(), own, span_id)
        if parent is not None and data.startswith(_PARENT_FIELD, at):
            at += _PARENT_SIZE
            parent = other(data[at - 32 : at].decode(), parent, parent_span)
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
            mark = typed_record(TypedMark, overhead_mark(own, end_ns, overhead), None)
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
        value, end = length_at(data, start + 2)
        if data[start + 1] != 0x18 or data[start] != end - start - 1 or end != at + 2 + size:
            raise FallbackError
        if value > INT64_MAX:
            raise FallbackError
        return value, end

    def _tail(self, at: int, end: int) -> tuple[_Tail, int]:
        """What the attributes from `at` on say, and where the events begin."""
        data, first = self.data, at
        fields: list[int | None] = [None] * len(INT_FIELDS)
        while at < end and data[at] == 0x4A:
            size = data[at + 1]
            body = data[at + 2 : at + 2 + size]
            slot, value = (USERS_SLOT, 0) if size > 127 else attributes.get(body) or attribute(body)
            if slot == SYNTHETIC_SLOT:
                return _SYNTHETIC, end
            if slot == USERS_SLOT:
                break
            if fields[slot] is not None:
                raise FallbackError
            fields[slot] = value
            at += 2 + size
        users = at
        while at < end and data[at] == 0x4A:
            _, at = field_at(data, at, 0x4A)
        attrs = b"{}" if users == at else span_texts(data[users:at])
        thread, cpu, gpu, memory, pid, rank, overhead = fields
        origin = self.origin
        pid = origin.pid if pid is None else differing(pid, origin.pid)
        rank = origin.rank if rank is None else differing(rank, origin.rank)
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
            self.marks.append(typed_record(TypedMark, mark, seq))
        for snapshot, seq in carrier.snapshots:
            self.snapshots.append(typed_record(TypedSnapshot, snapshot, seq))

    def _events(self, at: int, end: int, span_id: str) -> list[str]:
        data = self.data
        mark_ids: list[str] = []
        snapshots = False
        while at < end and data[at] == 0x5A:
            size, start = length_at(data, at + 1)
            at = start + size
            body = data[start:at]
            mark = plain_mark(body, span_id)
            if mark is None:
                event = Span.Event.FromString(body)
                if ev.kind_of(event) == ev.SNAPSHOT:
                    snapshots = True
                    self.snapshots.append(exact_snapshot(event, body, span_id))
                    continue
                mark = exact_mark(event, body, span_id)
            if snapshots:
                raise FallbackError  # marks stand before snapshots
            mark_ids.append(mark.id)
            self.marks.append(mark)
        if at != end and data[at:end] != _EMPTY_STATUS:
            raise FallbackError
        return mark_ids
