"""Convert between a Cirron span record, with its attached marks and snapshots, and an OTLP span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import semconv as sc
from ....ids import derive_id, digest, is_id, span_id_for
from .. import events as ev
from .. import residual as residuals
from ..canonical_form import same_span
from ..events import Record
from ..foreign import otel_view
from ..header import Header, Origin
from ..values import (
    UINT64_MAX,
    UnencodableError,
    add,
    add_escaped,
    encodable,
    is_int,
    read_typed,
    readable,
    split_attributes,
)

Placed = tuple[Record, int | None]
"""A record and its `seq`: the record's index in its list, unless the canonical order gives it."""


@dataclass(slots=True)
class SpanSet:
    """A span record and the events attached to it: the unit that the two mappers translate."""

    record: Record
    seq: int | None = None
    marks: list[Placed] = field(default_factory=list)
    snapshots: list[Placed] = field(default_factory=list)
    overhead_ns: int | None = None
    more_marks: int = 0
    """The number of the span's marks that are on carriers."""
    wire_id: object = None
    """The key of a decoded span's marks in `carried_ids`."""
    states_mark_ids: bool = False
    """Whether the residual of a decoded span contains `mark_ids`; carriers then add no ids."""
    dropped: list[str] = field(default_factory=list)
    """The keys of added attributes that the record cannot keep: its `attrs` is not an object."""


CarriedIds = Mapping[object, Sequence[Any]]
"""The ids of the marks on carriers, in order, by the Cirron id or the span id of their scope."""
NO_CARRIED: CarriedIds = {}
_UNKNOWN = object()
"""Stands for the id of a mark on a carrier that has not been read; it equals no id."""


def attach_carried(unit: SpanSet, carried: CarriedIds) -> None:
    """Append the ids of marks on carriers to the `mark_ids` of a decoded span.

    If the residual supplies `mark_ids`, that list is left unchanged. The decoder calls this
    function, and so does the encoder when it computes a residual: the residual is then the exact
    difference from the decoded record.
    """
    if unit.more_marks and not unit.states_mark_ids:
        ids = carried.get(unit.wire_id, ())
        unit.record["mark_ids"] = [*unit.record["mark_ids"], *ids[: unit.more_marks]]


@dataclass(frozen=True, slots=True)
class Wire:
    """The values of a span on the wire that are not in its record.

    The encoder chooses them; the decoder reads them from the message.
    """

    trace_id: bytes
    parent: bytes
    header: Header
    origin: Origin
    own_trace_id: str | None = None
    """The record's own trace id, if the layout replaces that with another one on the wire."""


def natural_parent(parent_id: object) -> bytes:
    """Return the parent span id on the wire of a record whose parent is in the same trace."""
    return span_id_for(parent_id) if isinstance(parent_id, str) and parent_id else b""


def wire_parent(record: Record) -> bytes:
    """Return the parent span id of a record on the wire.

    It is the record's `otel.parent_span_id` if that is valid: 8 bytes that are not all zero, or ""
    for a span that is a root on the wire. Otherwise it is derived from the record's `parent_id`.
    """
    otel = record.get("otel")
    stated = otel_view.unhex(otel.get("parent_span_id")) if isinstance(otel, dict) else None
    if stated is not None and (not stated or (len(stated) == 8 and any(stated))):
        return stated
    return natural_parent(record.get("parent_id"))


def wire_span_id(record: Record, seq: int | None, header: Header) -> bytes:
    """Return the span id of a record on the wire.

    It is derived from the record's id or, if the record has no id, from its `seq`.
    """
    record_id = record.get("id")
    if isinstance(record_id, str):
        return span_id_for(record_id)
    return digest(header.key, "span", -1 if seq is None else seq)[:8]


def overhead_id(span_id: str) -> str:
    """Return the id of the overhead mark of a span with a regular id: its first half reversed."""
    return span_id[15::-1] + span_id[16:]


def overhead_mark(span_id: str, end_ns: int, value: int) -> Record:
    """Return the SDK's own overhead mark of a span. The span determines its id and time."""
    return {
        "id": overhead_id(span_id) if is_id(span_id) else digest(sc.OVERHEAD_NS, span_id)[:8].hex(),
        "span_id": span_id,
        "name": sc.OVERHEAD_NS,
        "value_type": "int",
        "value": value,
        "attrs": {},
        "ts_ns": end_ns,
        "kind": "summary",
    }


def add_overhead(unit: SpanSet) -> None:
    """Add the overhead mark of a decoded span, if the span has an overhead attribute."""
    if unit.overhead_ns is not None:
        record = unit.record
        unit.marks.append((overhead_mark(record["id"], record["end_ns"], unit.overhead_ns), None))


def write_span(span: Span, unit: SpanSet, wire: Wire, carried: CarriedIds = NO_CARRIED) -> None:
    """Write `unit` as an OTLP span; `carried` contains the ids of marks on the batch's carriers."""
    record = unit.record
    span.trace_id = wire.trace_id
    span.span_id = wire_span_id(record, unit.seq, wire.header)
    span.parent_span_id = wire.parent
    name = record.get("name")
    if isinstance(name, str):
        span.name = name if encodable(name) else readable(name)
    for target, source in (("start_time_unix_nano", "start_ns"), ("end_time_unix_nano", "end_ns")):
        value = record.get(source)
        if is_int(value, 0, UINT64_MAX):
            setattr(span, target, value)
    otel = record.get("otel")
    otel_view.write(span, otel if isinstance(otel, dict) else {}, otel_view.KIND_INTERNAL)
    _write_fields(span, unit, wire)
    span_id = record.get("id")
    for mark, seq in unit.marks:
        ev.write_mark(span.events.add(), mark, span_id, seq)
    for snapshot, seq in unit.snapshots:
        ev.write_snapshot(span.events.add(), snapshot, span_id, seq)
    foreign = otel.get("events") if isinstance(otel, dict) else None
    for event in foreign if isinstance(foreign, list) else ():
        if isinstance(event, dict):
            ev.write_foreign(span.events.add(), event)
    attrs = record.get("attrs")
    if isinstance(attrs, dict):
        add_escaped(span.attributes, attrs)
    _write_residual(span, record, wire, carried)


def _write_fields(span: Span, unit: SpanSet, wire: Wire) -> None:
    record, attributes = unit.record, span.attributes
    _write_ids(span, record, wire)
    for key, value in (
        (sc.INDEX, record.get("index")),
        (sc.THREAD_ID, record.get("thread_id")),
        *((key, record.get(source)) for key, source in (*sc.COSTS, *sc.OPTIONAL)),
        (sc.PROCESS_PID, _unless(record.get("pid"), wire.origin.pid)),
        (sc.RANK, _unless(record.get("rank"), wire.origin.rank)),
        (sc.SEQ, unit.seq),
        (sc.OVERHEAD_NS, unit.overhead_ns),
        (sc.MORE_MARKS, unit.more_marks or None),
    ):
        if is_int(value):
            add(attributes, key, value)
    if wire.own_trace_id is not None:
        add(attributes, sc.TRACE_ID, wire.own_trace_id)


def _unless(value: object, default: object) -> object:
    return None if value == default else value


def _write_ids(span: Span, record: Record, wire: Wire) -> None:
    record_id, parent = record.get("id"), record.get("parent_id")
    if (
        isinstance(record_id, str)
        and encodable(record_id)
        and derive_id(span.span_id, wire.trace_id) != record_id
    ):
        add(span.attributes, sc.ID, record_id)
    if parent is None:
        if wire.parent:
            add(span.attributes, sc.PARENT_ID, "")
    elif isinstance(parent, str) and encodable(parent) and parent != _derived_parent(span):
        add(span.attributes, sc.PARENT_ID, parent)


def _derived_parent(span: Span) -> str | None:
    return derive_id(span.parent_span_id, span.trace_id) if span.parent_span_id else None


def _write_residual(span: Span, record: Record, wire: Wire, carried: CarriedIds) -> None:
    decoded = _read(span, wire.header, wire.origin)
    decoded.wire_id = _wire_id(span, decoded.record["id"], record)
    attach_carried(decoded, carried)
    residual = residuals.difference(record, decoded.record)
    residuals.write(span.attributes, sc.REST, residuals.text_of(residual))


def read_span(span: Span, header: Header, origin: Origin) -> SpanSet:
    """Decode a span that this package's encoder wrote.

    Raises UnencodableError if encoding the result again does not produce the same span.
    """
    unit = _read(span, header, origin)
    record = unit.record
    if unit.overhead_ns is not None and not (
        isinstance(record.get("id"), str) and is_int(record.get("end_ns"), 0)
    ):
        raise UnencodableError("an overhead mark needs its span's id and end")
    if unit.more_marks < 0:
        raise UnencodableError("a negative number of marks")
    ours, _ = split_attributes(span.attributes)
    wire = Wire(
        trace_id=span.trace_id,
        parent=span.parent_span_id,
        header=header,
        origin=origin,
        own_trace_id=read_typed(ours, sc.TRACE_ID, "string_value"),
    )
    # The ids on carriers are unknown here. If the residual contains `mark_ids`, one unknown id
    # makes the decoded list differ, so that the encoder writes the residual again.
    carried = {unit.wire_id: [_UNKNOWN]} if unit.states_mark_ids else NO_CARRIED
    again = Span()
    write_span(again, unit, wire, carried)
    if not same_span(again, span):
        raise UnencodableError("not written by this encoder")
    return unit


def _read(span: Span, header: Header, origin: Origin) -> SpanSet:
    """Decode a span and apply its residual; check nothing."""
    ours, attrs = split_attributes(span.attributes)
    residual = residuals.parse(residuals.joined(ours, sc.REST))
    unit = SpanSet(_fields(span, ours, attrs, origin))
    unit.seq = read_typed(ours, sc.SEQ, "int_value")
    unit.overhead_ns = read_typed(ours, sc.OVERHEAD_NS, "int_value")
    unit.more_marks = read_typed(ours, sc.MORE_MARKS, "int_value") or 0
    record = unit.record
    derived = record["id"]
    unit.states_mark_ids = any(
        "mark_ids" in residual.get(member, ()) for member in ("set", "missing")
    )
    # Events refer to the record's id, which the residual may replace: determine it first.
    record_id = residual.get("set", {}).get("id", derived)
    if "id" in residual.get("missing", ()):
        record_id = None
    foreign = []
    for event in span.events:
        kind = ev.kind_of(event)
        if kind == ev.MARK:
            unit.marks.append(ev.read_mark(event, record_id))
        elif kind == ev.SNAPSHOT:
            unit.snapshots.append(ev.read_snapshot(event, record_id))
        else:
            foreign.append(ev.read_foreign(event))
    record["mark_ids"] = [mark.get("id") for mark, _ in unit.marks]
    if unit.overhead_ns is not None:
        record["mark_ids"].append(overhead_mark(record_id, 0, 0)["id"])
    otel = _otel(span, ours, record, header)
    if foreign:
        otel["events"] = foreign
    if otel:
        record["otel"] = otel
    for key, name in sc.OPTIONAL:
        value = read_typed(ours, key, "int_value")
        if value is not None:
            record[name] = value
    residuals.apply(record, residual)
    unit.wire_id = _wire_id(span, derived, record)
    return unit


def _wire_id(span: Span, derived: str, record: Record) -> object:
    """Return the key of the record's marks in `carried_ids`.

    `derived` is the record's id before the residual is applied. If the residual changes it, the key
    is the span id: carriers do not contain an id that is only in the residual, and the derived id
    depends on the trace, which changes when parts of a batch are encoded again.
    """
    return derived if record.get("id") == derived else span.span_id


def _fields(span: Span, ours: dict[str, AnyValue], attrs: Record, origin: Origin) -> Record:
    explicit_id = read_typed(ours, sc.ID, "string_value")
    parent = read_typed(ours, sc.PARENT_ID, "string_value")
    if parent is None:
        parent = _derived_parent(span)
    pid = read_typed(ours, sc.PROCESS_PID, "int_value")
    rank = read_typed(ours, sc.RANK, "int_value")
    return {
        "id": derive_id(span.span_id, span.trace_id) if explicit_id is None else explicit_id,
        "name": span.name,
        "parent_id": parent or None,
        "index": read_typed(ours, sc.INDEX, "int_value"),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        **{field: read_typed(ours, key, "int_value") for key, field in sc.COSTS},
        "thread_id": read_typed(ours, sc.THREAD_ID, "int_value"),
        "pid": origin.pid if pid is None else pid,
        "rank": origin.rank if rank is None else rank,
        "attrs": attrs,
        "mark_ids": [],
    }


def _otel(span: Span, ours: dict[str, AnyValue], record: Record, header: Header) -> Record:
    otel = otel_view.read(span, otel_view.KIND_INTERNAL)
    if otel.get("status") == {}:
        del otel["status"]  # a collector adds an empty status to every span
    own_trace = read_typed(ours, sc.TRACE_ID, "string_value")
    if own_trace is None and header.own_trace_ids and span.trace_id != header.trace_id:
        own_trace = span.trace_id.hex()
    if own_trace is not None:
        otel["trace_id"] = own_trace
    if span.parent_span_id != natural_parent(record["parent_id"]):
        otel["parent_span_id"] = span.parent_span_id.hex()
    return otel
