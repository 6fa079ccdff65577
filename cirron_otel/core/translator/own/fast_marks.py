"""Translate events that our encoder wrote into the JSON text of marks and snapshots."""

from __future__ import annotations

from struct import Struct

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from .... import semconv as sc
from .. import events as ev
from ..json_text_cache import quoted
from ..pieces import MARK_DOUBLE, MARK_ID_PREFIX, mark_kind
from ..typed import NotCanonicalError, encode
from .fast_attributes import int_of, int_text, object_of, read_attributes, string_of
from .fast_wire import UNREADABLE, length_at
from .record_text import NEXT, MarkText, SnapshotText

EVENT_TAG = 0x5A
_ATTRIBUTE_TAG = 0x1A
_EVENT = Struct("<BQBB").unpack_from
_DOUBLE = Struct("<d").unpack_from
_ID = len(MARK_ID_PREFIX)
_POINT = mark_kind("point") + MARK_DOUBLE
_POINT_SIZE = len(_POINT)
_PREFIX = sc.SNAPSHOT_PREFIX
_SCOPE = '","span_id":'
_SCOPE_SIZE = len(_SCOPE)
_FLOAT = '"float","value":'
_FLOAT_SIZE = len(_FLOAT)
_NO_ATTRS = ',"attrs":{},"ts_ns":'
_POINT_END = f',"kind":"point"{NEXT}'
_SNAPSHOT = b"\x12\x0fcirron.snapshot"
_STRINGS = (_PREFIX + "tensor_name", _PREFIX + "dtype", _PREFIX + "mode")
_STATISTICS = [(_PREFIX + name, name) for name in ("mean", "std", "min", "max", "norm")]
_BINS, _COUNTS = _PREFIX + "histogram.bins", _PREFIX + "histogram.counts"


def _nonfinite() -> dict[str, str]:
    """Map the JSON text of a mark's residual to the name of NaN or of an infinity."""
    names = {}
    for name in ("nan", "inf", "-inf"):
        mark = {"id": "0", "span_id": "0", "name": "", "attrs": {}, "ts_ns": 1, "kind": "point"}
        mark |= {"value_type": "float", "value": None, "value_nonfinite": name}
        event = Span.Event()
        ev.write_mark(event, mark, "0", None)
        (residual,) = (p.value.string_value for p in event.attributes if p.key == sc.REST)
        names[encode(residual).decode()] = name
    return names


NONFINITE = _nonfinite()


class EventReader:
    """Reads the marks and snapshots of one complete batch."""

    def __init__(self, data: bytes, *, careful: bool = False) -> None:
        """With `careful`, check each value separately; otherwise check all together at the end."""
        self.data, self.careful = data, careful
        self.marks = MarkText()
        self.snapshots = SnapshotText()
        self._names: dict[bytes, str] = {}
        """JSON up to a float value, keyed by the bytes from the name to the digits of the id."""

    def read(self, at: int, end: int, scope: str) -> tuple[list[str], int]:
        """Read the events at `at`; `scope` is the JSON text of the scope's id.

        Returns the ids of the marks as JSON text, and the position after the events.
        """
        data = self.data
        mark_ids: list[str] = []
        has_snapshots = False
        while at < end and data[at] == EVENT_TAG:
            size, start = data[at + 1], at + 2
            if size > 127:
                size, start = length_at(data, at + 1)
            at = start + size
            marks, snapshots = len(self.marks.times), len(self.snapshots.times)
            try:
                mark_id = self._event(start, at, scope)
            except UNREADABLE:
                self.marks.cut(marks)
                self.snapshots.cut(snapshots)
                mark_id = self._exactly(data[start:at], scope)
            if mark_id is None:
                has_snapshots = True
            elif has_snapshots:
                raise NotCanonicalError  # the encoder writes marks before snapshots
            else:
                mark_ids.append(mark_id)
        if at > end:
            raise NotCanonicalError
        return mark_ids, at

    def _event(self, at: int, end: int, scope: str) -> str | None:
        """Read an event; return the id of a mark as JSON text, or None for a snapshot."""
        data = self.data
        tag, ts_ns, _, size = _EVENT(data, at)
        if tag != 0x09 or not ts_ns:
            raise NotCanonicalError
        begin = at + 11 + size + _ID
        name = self._names.get(data[at + 9 : begin]) or self._name(data[at + 9 : begin])
        if not name:
            self._snapshot(at + 9, begin - _ID, end, scope, ts_ns)
            return None
        at = begin + 32
        mark_id = data[begin:at].decode("latin-1")
        after = at + _POINT_SIZE
        if data[at:after] == _POINT:
            at = after + 8
            (value,) = _DOUBLE(data, after)
            attrs, last = _NO_ATTRS, _POINT_END
            if at != end:
                ours, users, at = read_attributes(data, at, end, _ATTRIBUTE_TAG)
                if ours:
                    self.marks.seqs[len(self.marks)] = _only_seq(ours)
                attrs = f',"attrs":{{{",".join(users.values())}}},"ts_ns":'
        else:
            ours, users, at = read_attributes(data, at, end, _ATTRIBUTE_TAG)
            last = f',"kind":{string_of(ours.pop(sc.MARK_KIND))}'
            if sc.SEQ in ours:
                self.marks.seqs[len(self.marks)] = int(int_text(ours.pop(sc.SEQ)))
            kind, value, text, nonfinite = _value(ours)
            if text:
                self.marks.others[len(self.marks)] = text
            name = f'{name[:-_FLOAT_SIZE]}"{kind}","value":'
            attrs, last = f',"attrs":{object_of(users)},"ts_ns":', f"{last}{nonfinite}{NEXT}"
        if at != end or (self.careful and not _is_plain(mark_id, value)):
            raise NotCanonicalError
        marks = self.marks
        marks.parts += (mark_id, scope, name, None, attrs, None, last)
        marks.times.append(ts_ns)
        marks.values.append(value)
        return f'"{mark_id}"'

    def _name(self, field: bytes) -> str:
        """Return the text of a mark up to a float value.

        The text is empty if `field` does not contain a mark's name and a regular id.
        """
        size = len(field) - _ID - 2
        if not field.endswith(MARK_ID_PREFIX) or field[0] != 0x12 or field[1] != size or size < 1:
            return ""
        name = quoted(field[2 : 2 + size])
        text = self._names[field] = f',"name":{name},"value_type":{_FLOAT}'
        return text

    def _snapshot(self, name: int, at: int, end: int, scope: str, ts_ns: int) -> None:
        """Read a snapshot; the bytes of its name's field are from `name` to `at`."""
        if self.data[name:at] != _SNAPSHOT:
            raise NotCanonicalError
        ours, users, at = read_attributes(self.data, at, end, _ATTRIBUTE_TAG)
        snapshot_id = string_of(ours.pop(_PREFIX + "id"))
        tensor, dtype, mode = (string_of(ours.pop(key)) for key in _STRINGS)
        shape = _ints(ours.pop(_PREFIX + "shape"))
        uri = ours.pop(_PREFIX + "blob_uri", None)
        seq = int_of(ours.pop(sc.SEQ, None))
        stats = [f'"{name}":{_float(ours.pop(key))}' for key, name in _STATISTICS if key in ours]
        if _BINS in ours:
            bins, counts = _floats(ours.pop(_BINS)), _ints(ours.pop(_COUNTS))
            stats.append(f'"histogram":{{"bins":{bins},"counts":{counts}}}')
        if at != end or ours or not snapshot_id[1:-1].isalnum() or not snapshot_id.isascii():
            raise NotCanonicalError
        summary = f"{{{','.join(stats)}}}" if stats else "null"
        self.snapshots.add_text(
            f'{{"id":{snapshot_id},"span_id":{scope[_SCOPE_SIZE:]},"tensor_name":{tensor},"shape":{shape},'
            f'"dtype":{dtype},"mode":{mode},"stats":{summary},'
            f'"blob_uri":{"null" if uri is None else string_of(uri)},"ts_ns":{ts_ns},'
            f'"attrs":{object_of(users)}}}',
            (ts_ns, snapshot_id[1:-1]),
            seq,
        )

    def _exactly(self, body: bytes, scope: str) -> str | None:
        """Read an event with the exact mapper.

        Raises NotCanonicalError if encoding the record again does not produce the same bytes.
        """
        event, again = Span.Event.FromString(body), Span.Event()
        scope_id = exactjson.loads(scope[_SCOPE_SIZE:].encode("latin-1"))
        is_snapshot = ev.kind_of(event) == ev.SNAPSHOT
        if is_snapshot:
            record, seq = ev.read_snapshot(event, scope_id)
            ev.write_snapshot(again, record, scope_id, seq)
        else:
            record, seq = ev.read_mark(event, scope_id)
            ev.write_mark(again, record, scope_id, seq)
        if again.SerializeToString() != body:
            raise NotCanonicalError
        records = self.snapshots if is_snapshot else self.marks
        records.add_record(record, "ts_ns", seq)
        return None if is_snapshot else exactjson.dumps(record["id"]).decode("latin-1")


def scope_of(span_id: object) -> str:
    """Return the piece of a mark's text that contains the id of its scope."""
    return _SCOPE + exactjson.dumps(span_id).decode("latin-1")


def _only_seq(ours: dict[str, str]) -> int:
    seq = int(int_text(ours.pop(sc.SEQ)))
    if ours:
        raise NotCanonicalError
    return seq


def _is_plain(mark_id: str, value: float) -> bool:
    return mark_id.isascii() and mark_id.isalnum() and value - value == 0


def _value(ours: dict[str, str]) -> tuple[str, float, str, str]:
    """Return a mark's type, a placeholder 0, its value as JSON, and the `value_nonfinite` text."""
    text = ours.pop(sc.MARK_VALUE, None)
    if text is None:
        name = NONFINITE.get(ours.pop(sc.REST, ""))
        if name is None or ours:
            raise NotCanonicalError
        return "float", 0, "null", f',"value_nonfinite":"{name}"'
    if ours:
        raise NotCanonicalError
    if text[0] == '"':
        return "string", 0, text, ""
    if text in ("true", "false"):
        return "bool", 0, text, ""
    if text.removeprefix("-").isdigit():
        return "int", 0, text, ""
    return "float", 0, _float(text), ""


def _float(text: str) -> str:
    """Return `text` if it is a finite float. Raises NotCanonicalError for anything else."""
    if text.lstrip("-")[0] not in "0123456789" or not set(".eE") & set(text):
        raise NotCanonicalError
    return text


def _floats(text: str) -> str:
    """Return `text` if it is a list of finite floats, else raise NotCanonicalError."""
    if text[0] != "[":
        raise NotCanonicalError
    for item in text[1:-1].split(",") if text != "[]" else ():
        _float(item)
    return text


def _ints(text: str) -> str:
    """Return `text` if it is a list of ints. Raises NotCanonicalError for anything else."""
    if text != "[]":
        if text[0] != "[":
            raise NotCanonicalError
        for item in text[1:-1].split(","):
            int_text(item)
    return text
