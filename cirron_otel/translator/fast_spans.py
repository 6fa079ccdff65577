"""Spans, exactly as our encoder writes them, to JSON: what `fast_decode` is made of."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812

from msgspec import Raw
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .. import semconv as sc
from ..ids import is_id
from . import events as ev
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
from .header import Header, Origin
from .pieces import ID_PREFIX, PARENT_PREFIX, int_index, int_overhead, span_texts
from .spans import Placed, overhead_id, read_span
from .synthetic import is_synthetic, read_synthetic
from .typed import EMPTY, FallbackError, TypedMark, TypedSnapshot, TypedSpan, encode
from .values import INT64_MAX, UnsayableError

_HEAD = Struct("<H16sH8sH").unpack_from
_LEAF = Struct("<H16sH8sH8sBB").unpack_from
_TIMES = Struct("<HBQBQ").unpack_from
_ZERO = bytes(8)
_EMPTY_STATUS = b"\x7a\x00"

_ID_FIELD, _PARENT_FIELD = ID_PREFIX, PARENT_PREFIX
_ID_SIZE, _PARENT_SIZE = len(_ID_FIELD) + 32, len(_PARENT_FIELD) + 32
_IDS_SIZE = _ID_SIZE + _PARENT_SIZE
_INDEX_KEY, _OVERHEAD_KEY = int_index(0)[2:-3], int_overhead(0)[2:-3]


_SYNTHETIC = ""
"""The tail of a synthetic span."""
_ATTRIBUTE_TAG, _EVENT_TAG = 0x4A, 0x5A


def _hex(text: str) -> str:
    """What is left of hex digits when they are read and written again."""
    try:
        return bytes.fromhex(text).hex()
    except ValueError:
        return ""


class SpanReader:
    """Reads the spans of one whole batch."""

    def __init__(self, data: bytes, header: Header, origin: Origin) -> None:
        self.data, self.header, self.origin = data, header, origin
        self.spans: list[str] = []
        """Each as JSON, made as msgspec would make it of a TypedSpan."""
        self.order: list[tuple[int, str]] = []
        self.marks: list[TypedMark] = []
        self.snapshots: list[TypedSnapshot] = []
        self.synthetic = 0
        self.lowers: dict[bytes, tuple[str, str]] = {}
        """By trace id: its lower half, and what a span in it says of it as a member of its JSON."""
        self.parents: dict[bytes, str] = {}
        self.names: dict[bytes, str] = {}
        self.told_parents: dict[str, str] = {}
        """Ids that were checked: what stood on the wire, and what the rule derives there."""
        self.common = b"\0"
        """The attributes of the span before, which are most often those of the next one."""
        self.tail = ""
        """The fields from `cpu_ns` to `attrs` that they say."""
        self.is_open = True
        """Whether no attributes of the user's are among them."""

    def read(self, at: int, end: int) -> None:
        """All spans: here those like most others, leaves with the attributes of the one before."""
        data = self.data
        names, parents, lowers = self.names, self.parents, self.lowers
        add, add_order = self.spans.append, self.order.append
        told_ids: list[str] = []
        while at < end:
            opening, size = data[at], data[at + 1]
            start = at + 2
            if size > 127:
                size, start = length_at(data, at + 1)
            at = start + size
            if opening != 0x12 or size < 40:
                raise FallbackError
            tag, trace_id, tag2, span_id, tag3, above, tag4, length = _LEAF(data, start)
            first = start + 40 + length
            rest = first + 20
            own = upper = ""
            if (
                at - rest == _IDS_SIZE + len(self.common)
                and data.startswith(_ID_FIELD, rest)
                and data.startswith(_PARENT_FIELD, rest + _ID_SIZE)
            ):
                rest += _IDS_SIZE
                own = data[rest - _PARENT_SIZE - 32 : rest - _PARENT_SIZE].decode()
                upper = data[rest - 32 : rest].decode()
            if (
                at != rest + len(self.common)
                or not data.startswith(self.common, rest)
                or (tag != 0x100A or tag2 != 0x0812 or tag3 != 0x0822 or tag4 != 0x2A)
            ):
                self._any(start, at)
                continue
            kind, tag5, start_ns, tag6, end_ns = _TIMES(data, first)
            name = names.get(data[start + 40 : first])
            parent = parents.get(above) or self._parent(above)
            lower, in_trace = lowers.get(trace_id) or self._lower(trace_id)
            if (name and start_ns and end_ns and span_id != _ZERO) and (
                kind == 0x0130 and tag5 == 0x39 and tag6 == 0x41 and length < 128
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
                    f'"start_ns":{start_ns},"end_ns":{end_ns},{self.tail},'
                    f'"mark_ids":[]{in_trace}}}'
                )
                add_order((end_ns, own))
            else:
                self._any(start, at)
        text = "".join(told_ids)
        if at != end or _hex(text) != text:
            raise FallbackError

    def _known_parent(self, told: str, derived: str, span_id: bytes) -> str:
        """A parent's id that stands beside the one the rule derives."""
        if self.told_parents.get(told) != derived:
            other(told, derived, span_id)
            self.told_parents[told] = derived
        return told

    def check_order(self) -> None:
        """Canonical order, which is what a batch without `seq` stands in; ids are unique."""
        order = self.order
        if order != sorted(order) or len({own for _, own in order}) != len(order):
            raise FallbackError
        self.marks.sort(key=time_and_id)
        self.snapshots.sort(key=time_and_id)
        for ids in ([m.id for m in self.marks], [s.id for s in self.snapshots]):
            if len(set(ids)) != len(ids):
                raise FallbackError

    def _any(self, at: int, end: int) -> None:
        """A span; what is not as the pieces have it goes to the exact mapper."""
        marks, snapshots = len(self.marks), len(self.snapshots)
        try:
            self._span(at, end)
        except (FallbackError, IndexError, StructError, UnicodeDecodeError, UnsayableError):
            del self.marks[marks:], self.snapshots[snapshots:]
            self._exactly(at, end)

    def _span(self, at: int, end: int) -> None:
        data, first = self.data, at
        trace_tag, trace_id, span_tag, span_id, next_tag = _HEAD(data, at)
        if trace_tag != 0x100A or span_tag != 0x0812 or span_id == _ZERO:
            raise FallbackError
        lower, in_trace = self.lowers.get(trace_id) or self._lower(trace_id)
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
            index, at = self._int_at(at, len(_INDEX_KEY))
        tail, overhead, events = self._known_tail(at, end) or self._tail(at, end)
        if events > end:  # a field claims to be longer than the span
            raise FallbackError
        if tail is _SYNTHETIC:
            self._take_synthetic(first, end)
            return
        mark_ids = ""
        if events < end or overhead is not None:
            mark_ids = self._riders(events, end, own, end_ns, overhead)
        above = "null" if parent is None else f'"{parent}"'
        self.spans.append(
            f'{{"id":"{own}","name":{name},"parent_id":{above},"index":{index},'
            f'"start_ns":{start_ns},"end_ns":{end_ns},{tail},"mark_ids":[{mark_ids}]{in_trace}}}'
        )
        self.order.append((end_ns, own))

    def _known_tail(self, at: int, end: int) -> tuple[str, int | None, int] | None:
        """What `_tail` gives, for the attributes of the span before and an overhead of its own."""
        data, overhead = self.data, None
        if not data.startswith(self.common, at):
            return None
        at += len(self.common)
        if at < end and data.startswith(_OVERHEAD_KEY, at + 2):
            if not self.is_open:
                return None
            overhead, at = self._int_at(at, len(_OVERHEAD_KEY))
        if at == end or (at < end and data[at] == _EVENT_TAG):
            return self.tail, overhead, at
        return None

    def _exactly(self, at: int, end: int) -> None:
        """A span by the exact mapper. Raises FallbackError where the types do not hold it."""
        span = Span.FromString(self.data[at:end])
        if is_synthetic(span):
            self._take_synthetic(at, end)
            return
        unit = read_span(span, self.header, self.origin)
        if unit.more_marks:
            raise FallbackError
        record = typed_record(TypedSpan, unit.record, unit.seq)
        self.spans.append(encode(record).decode())
        self.order.append((record.end_ns, record.id))
        self._take(unit.marks, unit.snapshots)
        if unit.overhead_ns is not None:
            self._overhead(record.id, record.end_ns, unit.overhead_ns)

    def _take(self, marks: list[Placed], snapshots: list[Placed]) -> None:
        for mark, seq in marks:
            self.marks.append(typed_record(TypedMark, mark, seq))
        for snapshot, seq in snapshots:
            self.snapshots.append(typed_record(TypedSnapshot, snapshot, seq))

    def _overhead(self, own: str, end_ns: int, value: int) -> str:
        """Add the SDK's own overhead mark of a span; returns its id."""
        if end_ns > INT64_MAX or not is_id(own):
            raise FallbackError
        name, told = sc.OVERHEAD_NS, Raw(b"%d" % value)
        mark_id = overhead_id(own)
        self.marks.append(TypedMark(mark_id, own, name, "int", told, EMPTY, end_ns, "summary"))
        return mark_id

    def _riders(self, at: int, end: int, own: str, end_ns: int, overhead: int | None) -> str:
        if at == end and overhead is not None:
            return f'"{self._overhead(own, end_ns, overhead)}"'
        mark_ids = self._events(at, end, own) if at < end else []
        if overhead is not None:
            mark_ids.append(self._overhead(own, end_ns, overhead))
        return encode(mark_ids).decode()[1:-1]

    def _lower(self, trace_id: bytes) -> tuple[str, str]:
        own = self.header.own_trace_ids and trace_id != self.header.trace_id
        in_trace = f',"otel":{{"trace_id":"{trace_id.hex()}"}}' if own else ""
        made = self.lowers[trace_id] = (trace_id[8:].hex(), in_trace)
        return made

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

    def _int_at(self, at: int, key: int) -> tuple[int, int]:
        """The value of the int attribute at `at`, whose key is `key` bytes, and where it ends."""
        data = self.data
        size = data[at + 1]
        start = at + 2 + key
        value, end = length_at(data, start + 2)
        if data[at] != _ATTRIBUTE_TAG:
            raise FallbackError
        if data[start + 1] != 0x18 or data[start] != end - start - 1 or end != at + 2 + size:
            raise FallbackError
        if value > INT64_MAX:
            raise FallbackError
        return value, end

    def _tail(self, at: int, end: int) -> tuple[str, int | None, int]:
        """The JSON of what the attributes from `at` on say, the overhead, where events begin."""
        data, first = self.data, at
        last, ended = at, USERS_SLOT
        fields: list[int | None] = [None] * len(INT_FIELDS)
        while at < end and data[at] == _ATTRIBUTE_TAG:
            size = data[at + 1]
            body = data[at + 2 : at + 2 + size]
            slot, value = (USERS_SLOT, 0) if size > 127 else attributes.get(body) or attribute(body)
            if slot == SYNTHETIC_SLOT:
                return _SYNTHETIC, None, end
            if slot == USERS_SLOT:
                break
            ended = slot
            if fields[slot] is not None:
                raise FallbackError
            fields[slot] = value
            last, at = at, at + 2 + size
        users = at
        while at < end and data[at] == _ATTRIBUTE_TAG:
            _, at = field_at(data, at, _ATTRIBUTE_TAG)
        attrs = b"{}" if users == at else span_texts(data[users:at])
        thread, cpu, gpu, memory, pid, rank, overhead = fields
        origin = self.origin
        pid = origin.pid if pid is None else differing(pid, origin.pid)
        rank = origin.rank if rank is None else differing(rank, origin.rank)
        told = {"cpu_ns": cpu, "gpu_ns": gpu, "memory_peak_bytes": memory}
        told |= {"thread_id": thread, "pid": pid, "rank": rank}
        tail = f'{encode(told).decode()[1:-1]},"attrs":{attrs.decode()}'
        self.is_open = users == at
        if overhead is None:
            self.common, self.tail = data[first:at] or b"\0", tail
        elif self.is_open and ended == INT_FIELDS[sc.OVERHEAD_NS]:  # the next one has another
            self.common, self.tail = data[first:last] or b"\0", tail
        if at == end - 2 and data[at:end] == _EMPTY_STATUS:
            at = end
        return tail, overhead, at

    def _take_synthetic(self, at: int, end: int) -> None:
        carrier = read_synthetic(Span.FromString(self.data[at:end]), self.header)
        self.synthetic += 1
        if carrier is None:
            return
        if carrier.rest is not None:
            raise FallbackError
        self._take(carrier.marks, carrier.snapshots)

    def _events(self, at: int, end: int, span_id: str) -> list[str]:
        data = self.data
        mark_ids: list[str] = []
        snapshots = False
        while at < end and data[at] == _EVENT_TAG:
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
