"""Translate spans that our encoder wrote into JSON text, for `fast_decode`.

A span that this module accepts is in canonical form and is not checked again. Any other span is
passed to the exact mapper.
"""

from __future__ import annotations

from struct import Struct

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import semconv as sc
from ....ids import is_id
from ..header import Header, Origin
from ..pieces import ID_PREFIX, PARENT_PREFIX, int_index, int_overhead
from ..typed import NotCanonicalError
from ..values import INT64_MAX
from .fast_attributes import int_of, read_attributes
from .fast_marks import EVENT_TAG, EventReader, scope_of
from .fast_span_parts import (
    NAME_TAG,
    PARENT_SIZE,
    ZERO,
    TraceText,
    members_of,
    name_of,
    other_ids,
    residual_of,
)
from .fast_wire import UNREADABLE, SuspectError, length_at
from .record_text import NEXT, SpanText
from .spans import Placed, overhead_id, overhead_mark, read_span
from .synthetic import is_synthetic, read_synthetic

_HEAD = Struct("<20s8s10sxB").unpack_from
"""Reads the trace id's field with the tag of the span id, the span id, the parent's field, and the
length of the name.
"""
_TIMES = Struct("<QBQ").unpack_from
_SPAN_TAG, _PARENT_TAG, _ATTRIBUTE_TAG = 0x12, 0x22, 0x4A
_END_TAG = 0x41
_EMPTY_STATUS = b"\x7a\x00"
_SHORTEST = 60
"""The size in bytes of a span that has a parent but no name."""

_ID_KEY = len(ID_PREFIX)
_ID_SIZE = _ID_KEY + 32
_IDS_SIZE = _ID_SIZE + PARENT_SIZE
_IDS = Struct(f"<{_ID_KEY}x16s16s{PARENT_SIZE}s").unpack_from
"""Reads the two halves of an explicit id, and the attribute with the parent's explicit id."""
_INDEX_KEY, _OVERHEAD_KEY = int_index(0)[2:-3], int_overhead(0)[2:-3]
_INDEX_SIZE, _OVERHEAD_SIZE = len(_INDEX_KEY), len(_OVERHEAD_KEY)
_MOST_TAILS, _LONGEST_TAIL = 1024, 1024

_SYNTHETIC = ""
"""Marks a synthetic span in place of its text."""
_OTHER = (b"", b"", b"", 0)
"""Stands in for the result of `_HEAD` if a span is too short for it."""

# Pieces of the text of spans and of overhead marks
_NO_INDEX, _END = ',"index":null,"start_ns":', ',"end_ns":'


_OVERHEAD = f',"name":"{sc.OVERHEAD_NS}","value_type":"int","value":'
_NO_ATTRS, _SUMMARY = ',"attrs":{},"ts_ns":', f',"kind":"summary"{NEXT}'


_Span = tuple[TraceText, bytes, bytes, str, str, int, int]
"""The first fields of a span.

They are its trace, its span id, the bytes from the name to the tag of the start time, the lower
half of its Cirron id, the JSON text of the parent's id, and the start and end times.
"""


class SpanReader:
    """Reads the spans of one complete batch."""

    def __init__(
        self, data: bytes, header: Header, origin: Origin, *, careful: bool = False
    ) -> None:
        """With `careful`, check each explicit id separately; otherwise check all ids at the end."""
        self.data, self.header, self.origin = data, header, origin
        self.spans = SpanText()
        self.events = EventReader(data, careful=careful)
        self.synthetic: set[object] = set()
        """Identifies each synthetic span."""
        self.residual: str | None = None
        """The header's residual, if a separate span carries it."""
        self._careful = careful
        self._ordinal = -1
        """The ordinal of the last carrier."""
        self._traces: dict[bytes, TraceText] = {}
        """Traces, by the first 20 bytes of a span."""
        self._names: dict[bytes, str] = {}
        """JSON from the name to the parent, keyed by the bytes from the name to the start tag."""
        self._commons: dict[bytes, tuple[bytes, str]] = {}
        """The latest attributes without the overhead, and their JSON, keyed like `_names`."""
        self._uppers: list[bytes] = []
        """The upper halves of the explicit ids, unchecked."""
        self._lowers: list[str] = []
        """The lower halves of the explicit ids, unchecked."""
        self._explicit: list[bytes] = []
        """The span ids of the spans that have an explicit id."""

    def read(self, at: int, end: int) -> None:  # noqa: PLR0915 - a hot loop: calls are slow
        """Read all spans; spans with a parent, known attributes and no events are read inline."""
        data, names, spans, careful = self.data, self._names, self.spans, self._careful
        uppers, lowers, explicit = self._uppers, self._lowers, self._explicit
        add, times, span_ids = spans.parts.extend, spans.times, spans.span_ids
        last, trace = b"", None
        while at < end:
            size, start = data[at + 1], at + 2
            if size > 127:
                high = data[start]
                if 0 < high < 128:
                    size, start = size & 127 | high << 7, at + 3
                else:
                    size, start = length_at(data, at + 1)
            if data[at] != _SPAN_TAG:
                raise NotCanonicalError
            at = start + size
            head, span_id, parent_field, length = (
                _HEAD(data, start) if size >= _SHORTEST else _OTHER
            )
            first = start + 43 + length
            if head != last:
                last, trace = head, self._traces.get(head)
            if trace is None or first + 17 > at:
                self._other(start, at)
                last = b""
                continue
            start_ns, end_tag, end_ns = _TIMES(data, first)
            tail_start = first + 17
            name = names.get(data[start + 38 : first])
            lower, unread = trace.lower, parent_field
            if at - tail_start > _IDS_SIZE and data[tail_start : tail_start + _ID_KEY] == ID_PREFIX:
                upper, other, field = _IDS(data, tail_start)
                entry = trace.explicit.get(parent_field)
                if entry is None or entry[0] != field:
                    entry = trace.explicit_parent(parent_field, field)
                parent, own_lower = entry[1], other.decode("latin-1")
                if parent and own_lower != lower and not careful:
                    tail_start += _IDS_SIZE
                    lower, unread = own_lower, None
                    uppers.append(upper)
                    lowers.append(own_lower)
                    explicit.append(span_id)
                else:
                    parent = trace.parents.get(parent_field) or trace.parent(parent_field)
            else:
                parent = trace.parents.get(parent_field) or trace.parent(parent_field)
            tail = trace.tails.get(data[tail_start:at])
            if (
                (name and parent and start_ns and end_ns)
                and end_tag == _END_TAG
                and span_id != ZERO
            ):
                if tail:
                    add((None, lower, name, parent, _NO_INDEX, None, _END, None, tail))
                    times += (start_ns, end_ns)
                    span_ids.append(span_id)
                else:
                    field = data[start + 38 : first]
                    each = (trace, span_id, field, lower, parent, start_ns, end_ns)
                    self._known(each, unread, start, tail_start, at)
            else:
                self._other(start, at)
        if at != end:
            raise NotCanonicalError

    def check_ids(self) -> None:
        """Check the explicit ids. Raises SuspectError if any of them is not regular."""
        text = "".join(self._lowers)
        try:
            again = bytes.fromhex(text).hex()
        except ValueError:
            again = ""
        uppers = b"".join(self._explicit).hex().encode()
        if again != text or uppers != b"".join(self._uppers):
            raise SuspectError

    def _known(self, each: _Span, above: bytes | None, start: int, at: int, end: int) -> None:
        """Read the remaining fields of a span, from `at`; `each` contains the fields before `at`.

        `above` is the parent's field if the explicit ids have not been read yet, else None.
        """
        marks, snapshots = len(self.events.marks.times), len(self.events.snapshots.times)
        try:
            if above is not None and self.data.startswith((ID_PREFIX, PARENT_PREFIX), at):
                each, at = self._ids(each, above, at)
            attributes_end = self._rest(each, at, end)
            if attributes_end:
                self._take_synthetic(start, attributes_end, end)
        except UNREADABLE:
            self.events.marks.cut(marks)
            self.events.snapshots.cut(snapshots)
            self._exactly(start, end)

    def _other(self, start: int, end: int) -> None:
        """Read a span that the inline path of `read` does not cover.

        Its trace or one of its fields has not been seen before, or its layout is unusual.
        """
        try:
            each, parent_field, at = self._head(start)
        except UNREADABLE:
            self._exactly(start, end)
            return
        self._known(each, parent_field, start, at, end)

    def _head(self, at: int) -> tuple[_Span, bytes, int]:
        """Read a span up to its times.

        Returns the values read, the parent's field, and the position after the times.
        """
        data = self.data
        head, span_id = data[at : at + 20], data[at + 20 : at + 28]
        if head not in self._traces:
            self._traces[head] = TraceText(head, self.header)
        trace = self._traces[head]
        at += 28
        parent_field, parent = b"", "null"
        if data[at] == _PARENT_TAG:
            parent_field = data[at : at + 10]
            parent = trace.parents.get(parent_field) or trace.parent(parent_field)
            at += 10
        begin = at
        if data[at] == NAME_TAG:
            at += 2 + data[at + 1]
        at += 3
        field = data[begin:at]
        if field not in self._names:
            self._names[field] = name_of(field)
        start_ns, end_tag, end_ns = _TIMES(data, at)
        if end_tag != _END_TAG or not (start_ns and end_ns and parent) or span_id == ZERO:
            raise NotCanonicalError
        return (trace, span_id, field, trace.lower, parent, start_ns, end_ns), parent_field, at + 17

    def _ids(self, each: _Span, above: bytes, at: int) -> tuple[_Span, int]:
        """Read the explicit ids at `at`; return `each` with these ids, and the next position."""
        data = self.data
        trace, span_id, field, lower, parent, start_ns, end_ns = each
        if data[at : at + _ID_KEY] == ID_PREFIX:
            at += _ID_SIZE
            own_id = data[at - 32 : at].decode("latin-1")
            if (
                own_id[:16] != span_id.hex()
                or own_id[16:] == lower
                or (self._careful and not is_id(own_id))
            ):
                raise NotCanonicalError
            lower = own_id[16:]
            self._uppers.append(data[at - 32 : at - 16])
            self._lowers.append(lower)
            self._explicit.append(span_id)
        if above and data.startswith(PARENT_PREFIX, at):
            entry = trace.explicit_parent(above, data[at : at + PARENT_SIZE])
            if not entry[1]:
                raise NotCanonicalError
            parent, at = entry[1], at + PARENT_SIZE
        return (trace, span_id, field, lower, parent, start_ns, end_ns), at

    def _rest(self, each: _Span, at: int, end: int) -> int:
        """Read a span's attributes and events, and add it.

        A synthetic span is not added: for it, this returns the position after the attributes. For
        any other span it returns 0.
        """
        data = self.data
        trace, span_id, field, lower, parent, start_ns, end_ns = each
        index = _NO_INDEX
        if data[at + 2 : at + 2 + _INDEX_SIZE] == _INDEX_KEY:
            number, at = self._int_at(at, end, _INDEX_SIZE)
            index = f',"index":{number},"start_ns":'
        members, overhead, seq, residual, at = self._attributes(trace, field, at, end)
        if members == _SYNTHETIC:
            return at
        own_id = span_id.hex() + lower
        mark_ids, at = (
            self.events.read(at, end, f'","span_id":"{own_id}"') if at < end else ([], at)
        )
        if at != end and data[at:end] != _EMPTY_STATUS:
            raise NotCanonicalError
        if overhead is not None:
            mark_ids.append(self._overhead(own_id, end_ns, overhead))
        ids = f"[{','.join(mark_ids)}]"
        if residual:
            ids = other_ids(residual, ids)
        spans = self.spans
        if seq is not None:
            spans.seqs[len(spans)] = seq
        tail = f'{members},"mark_ids":{ids}{trace.last}'
        name = self._names[field]
        spans.parts += (None, lower, name, parent, index, None, _END, None, tail)
        spans.times += (start_ns, end_ns)
        spans.span_ids.append(span_id)
        return 0

    def _attributes(
        self, trace: TraceText, name: bytes, at: int, end: int
    ) -> tuple[str, int | None, int | None, str, int]:
        """Read the attributes of a span at `at`, after its ids and index.

        Returns the text from `cpu_ns` to `attrs`, the overhead, the `seq`, the text of the
        residual, and the position after the attributes.
        """
        data = self.data
        common = self._commons.get(name)
        if common is not None:
            after = at + len(common[0])
            if data[at:after] == common[0]:
                overhead = None
                if data[after + 2 : after + 2 + _OVERHEAD_SIZE] == _OVERHEAD_KEY:
                    overhead, after = self._int_at(after, end, _OVERHEAD_SIZE)
                if after == end or (after < end and data[after] == EVENT_TAG):
                    return common[1], overhead, None, "", after
        ours, users, after = read_attributes(data, at, end, _ATTRIBUTE_TAG)
        if sc.SYNTHETIC in ours:
            return _SYNTHETIC, None, None, "", after
        overhead, seq = int_of(ours.pop(sc.OVERHEAD_NS, None)), int_of(ours.pop(sc.SEQ, None))
        residual = residual_of(ours) if sc.REST in ours else ""
        members = members_of(ours, users, self.origin)
        if seq is None and not residual and after > at:
            self._keep(name, data[at:after], members, overhead)
            if overhead is None and after == end and len(trace.tails) < _MOST_TAILS:
                trace.tails[data[at:after]] = f'{members},"mark_ids":[]{trace.last}'
        return members, overhead, seq, residual, after

    def _keep(self, name: bytes, field: bytes, members: str, overhead: int | None) -> None:
        """Cache the text of serialised attributes for the following spans."""
        if len(field) > _LONGEST_TAIL:
            return
        if overhead is None:
            self._commons[name] = (field, members)
        elif field.endswith(int_overhead(overhead)):
            self._commons[name] = (field[: -len(int_overhead(overhead))], members)

    def _overhead(self, scope_id: str, end_ns: int, value: int) -> str:
        """Add the SDK's own overhead mark of a span; return the mark's id as JSON."""
        if end_ns > INT64_MAX:
            raise NotCanonicalError
        mark_id = overhead_id(scope_id)
        marks = self.events.marks
        id_text = f'","span_id":"{scope_id}"'
        marks.parts += (mark_id, id_text, _OVERHEAD, None, _NO_ATTRS, None, _SUMMARY)
        marks.values.append(value)
        marks.times.append(end_ns)
        return f'"{mark_id}"'

    def _int_at(self, at: int, end: int, key: int) -> tuple[int, int]:
        """Read the int attribute at `at`, whose key has `key` bytes.

        Returns the value, and the position after the attribute.
        """
        data = self.data
        size = data[at + 1]
        start = at + 2 + key
        value, after = data[start + 2], start + 3
        if value > 127:
            value, after = length_at(data, start + 2)
        if data[at] != _ATTRIBUTE_TAG:
            raise NotCanonicalError
        if data[start + 1] != 0x18 or data[start] != after - start - 1 or after != at + 2 + size:
            raise NotCanonicalError
        if value > INT64_MAX or after > end:
            raise NotCanonicalError
        return value, after

    def _exactly(self, at: int, end: int) -> None:
        """Read a span with the exact mapper."""
        span = Span.FromString(self.data[at:end])
        if is_synthetic(span):
            self._take_synthetic(at, end, end)
            return
        unit = read_span(span, self.header, self.origin)
        if unit.more_marks:
            raise NotCanonicalError
        record, marks = unit.record, unit.marks
        self.spans.add_record(record, "end_ns", unit.seq)
        if unit.overhead_ns is not None:
            mark = overhead_mark(record["id"], record["end_ns"], unit.overhead_ns)
            marks = [*marks, (mark, None)]
        self._add_records(marks, unit.snapshots)

    def _add_records(self, marks: list[Placed], snapshots: list[Placed]) -> None:
        for mark, seq in marks:
            self.events.marks.add_record(mark, "ts_ns", seq)
        for snapshot, seq in snapshots:
            self.events.snapshots.add_record(snapshot, "ts_ns", seq)

    def _take_synthetic(self, at: int, attributes_end: int, end: int) -> None:
        """Read a synthetic span with the exact mapper, but its events with the event reader.

        The events, if any, start at `attributes_end`.
        """
        data = self.data
        has_events = attributes_end < end and data[attributes_end] == EVENT_TAG
        span = Span.FromString(data[at : attributes_end if has_events else end])
        carrier = read_synthetic(span, self.header)
        key: object = (span.trace_id, span.span_id) if carrier is None else carrier.ordinal
        if key in self.synthetic:
            raise NotCanonicalError
        self.synthetic.add(key)
        if carrier is None:
            if has_events:
                raise NotCanonicalError
            return
        if carrier.ordinal <= self._ordinal:
            raise NotCanonicalError
        self._ordinal = carrier.ordinal
        self._add_records(carrier.marks, carrier.snapshots)
        if carrier.residual is not None:
            if self.residual is not None or has_events:
                raise NotCanonicalError
            self.residual = carrier.residual
        elif has_events:
            _, at = self.events.read(attributes_end, end, scope_of(carrier.span_id))
            if at != end and data[at:end] != _EMPTY_STATUS:
                raise NotCanonicalError
