"""Convert marks, snapshots and a span's foreign events to span events, and back.

An event's attributes, not its name, determine its kind: an event with `cirron.snapshot.*` is a
snapshot, an event with `cirron.mark.id` or a residual is a mark, and any other event is foreign,
that is, an ordinary OpenTelemetry event.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ... import semconv as sc
from . import residual as residuals
from .values import (
    UINT64_MAX,
    UnencodableError,
    add,
    add_escaped,
    encodable,
    is_int,
    read_typed,
    read_value,
    readable,
    split_attributes,
)

Record = dict[str, Any]

MARK, SNAPSHOT, FOREIGN = "marks", "snapshots", "events"

VALUE_TYPES = {
    "double_value": "float",
    "int_value": "int",
    "string_value": "string",
    "bool_value": "bool",
}
_SNAPSHOT_STRINGS = ("id", "tensor_name", "dtype", "mode", "blob_uri")
_STATISTICS = ("mean", "std", "min", "max", "norm")
_HISTOGRAM = ("bins", "counts")


def kind_of(event: Span.Event) -> str:
    """Return the kind of an event: a mark, a snapshot or a foreign event."""
    keys = [pair.key for pair in event.attributes]
    if any(key.startswith(sc.SNAPSHOT_PREFIX) for key in keys):
        return SNAPSHOT
    if sc.MARK_ID in keys or sc.REST in keys:
        return MARK
    return FOREIGN


def write_name_and_time(event: Span.Event, name: object, time_ns: object) -> None:
    """Set an event's name and time if OTLP can express them."""
    if isinstance(name, str):
        event.name = name if encodable(name) else readable(name)
    if is_int(time_ns, 0, UINT64_MAX):
        event.time_unix_nano = time_ns  # type: ignore[assignment]


def write_mark(event: Span.Event, mark: Record, span_id: str | None, seq: int | None) -> None:
    """Write a mark as an event; `span_id` is the scope id of the event's span or carrier."""
    write_name_and_time(event, mark.get("name"), mark.get("ts_ns"))
    attributes = event.attributes
    for key, field in ((sc.MARK_ID, "id"), (sc.MARK_KIND, "kind")):
        value = mark.get(field)
        if isinstance(value, str) and encodable(value):
            add(attributes, key, value)
    value = mark.get("value")
    if isinstance(value, (str, bool, int, float)):
        add(attributes, sc.MARK_VALUE, value)
    if seq is not None:
        add(attributes, sc.SEQ, seq)
    _write_attrs(attributes, mark.get("attrs"))
    residual = residuals.difference(mark, _mark_fields(event, span_id))
    residuals.together(residual, mark, ("value", "value_type"))
    text = residuals.text_of(residual)
    if not text and not any(pair.key == sc.MARK_ID for pair in attributes):
        text = "{}"  # without an id, only a residual identifies this as a mark
    residuals.write(attributes, sc.REST, text)


def read_mark(event: Span.Event, span_id: str | None) -> tuple[Record, int | None]:
    """Decode a mark and its `seq`. Raises UnencodableError if the event is not valid."""
    return _read(event, span_id, sc.REST, _mark_of)


def _mark_fields(event: Span.Event, span_id: str | None) -> Record:
    ours, attrs = split_attributes(event.attributes)
    return _mark_of(event, ours, attrs, span_id)


def _mark_of(
    event: Span.Event, ours: dict[str, AnyValue], attrs: Record, span_id: str | None
) -> Record:
    record: Record = {"id": read_typed(ours, sc.MARK_ID, "string_value"), "span_id": span_id}
    record["name"] = event.name
    value = ours.get(sc.MARK_VALUE)
    kind = value.WhichOneof("value") if value is not None else None
    if value is not None and kind in VALUE_TYPES:
        record["value_type"] = VALUE_TYPES[kind]
        record["value"] = getattr(value, kind)
    record["attrs"] = attrs
    record["ts_ns"] = event.time_unix_nano
    record["kind"] = read_typed(ours, sc.MARK_KIND, "string_value")
    return record


def write_snapshot(
    event: Span.Event, snapshot: Record, span_id: str | None, seq: int | None
) -> None:
    """Write a snapshot as an event, with its fields under `cirron.snapshot.*`."""
    prefix, attributes = sc.SNAPSHOT_PREFIX, event.attributes
    write_name_and_time(event, "cirron.snapshot", snapshot.get("ts_ns"))
    for field in _SNAPSHOT_STRINGS:
        value = snapshot.get(field)
        if isinstance(value, str) and encodable(value):
            add(attributes, prefix + field, value)
    shape = snapshot.get("shape")
    if _all_of(shape, int):
        add(attributes, prefix + "shape", shape)
    stats = snapshot.get("stats")
    if isinstance(stats, dict):
        _write_stats(attributes, stats)
    if seq is not None:
        add(attributes, sc.SEQ, seq)
    _write_attrs(attributes, snapshot.get("attrs"))
    residual = residuals.difference(snapshot, _snapshot_fields(event, span_id))
    text = residuals.text_of(residual)
    if not text and not any(pair.key.startswith(prefix) for pair in attributes):
        text = "{}"
    residuals.write(attributes, sc.SNAPSHOT_REST, text)


def _all_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)


def _write_stats(attributes: Any, stats: Record) -> None:
    for field in _STATISTICS:
        if isinstance(stats.get(field), float):
            add(attributes, sc.SNAPSHOT_PREFIX + field, stats[field])
    histogram = stats.get("histogram")
    if isinstance(histogram, dict):
        for field, kind in zip(_HISTOGRAM, (float, int), strict=True):
            if _all_of(histogram.get(field), kind):
                add(attributes, f"{sc.SNAPSHOT_PREFIX}histogram.{field}", histogram[field])


def read_snapshot(event: Span.Event, span_id: str | None) -> tuple[Record, int | None]:
    """Decode a snapshot and its `seq`. Raises UnencodableError if the event is not valid."""
    return _read(event, span_id, sc.SNAPSHOT_REST, _snapshot_of)


def _snapshot_fields(event: Span.Event, span_id: str | None) -> Record:
    ours, attrs = split_attributes(event.attributes)
    return _snapshot_of(event, ours, attrs, span_id)


def _snapshot_of(
    event: Span.Event, ours: dict[str, AnyValue], attrs: Record, span_id: str | None
) -> Record:
    def of(field: str, kind: str = "string_value") -> Any:
        return read_typed(ours, sc.SNAPSHOT_PREFIX + field, kind)

    def listed(field: str) -> Any:
        value = ours.get(sc.SNAPSHOT_PREFIX + field)
        return None if value is None else read_value(value)

    histogram = {f: listed(f"histogram.{f}") for f in _HISTOGRAM}
    stats: Record = {f: of(f, "double_value") for f in _STATISTICS}
    stats = {field: value for field, value in stats.items() if value is not None}
    if any(value is not None for value in histogram.values()):
        stats["histogram"] = histogram
    return {
        "id": of("id"),
        "span_id": span_id,
        "tensor_name": of("tensor_name"),
        "shape": listed("shape"),
        "dtype": of("dtype"),
        "mode": of("mode"),
        "stats": stats or None,
        "blob_uri": of("blob_uri"),
        "ts_ns": event.time_unix_nano,
        "attrs": attrs,
    }


def _write_attrs(attributes: Any, attrs: object) -> None:
    if isinstance(attrs, dict):
        add_escaped(attributes, attrs)


def _read(
    event: Span.Event, span_id: str | None, rest_key: str, fields: Any
) -> tuple[Record, int | None]:
    ours, attrs = split_attributes(event.attributes)
    residual = residuals.parse(residuals.joined(ours, rest_key))
    record = fields(event, ours, attrs, span_id)
    residuals.apply(record, residual)
    return record, read_typed(ours, sc.SEQ, "int_value")


def write_foreign(event: Span.Event, record: Record) -> None:
    """Write an entry of `otel.events` as a span event, with its attributes' keys escaped."""
    write_name_and_time(event, record.get("name"), record.get("time_ns"))
    attributes = record.get("attributes")
    _write_attrs(event.attributes, attributes)
    dropped = record.get("dropped_attributes_count")
    if is_int(dropped, 0, 2**32 - 1):
        event.dropped_attributes_count = dropped  # type: ignore[assignment]


def read_foreign(event: Span.Event) -> Record:
    """Convert a foreign event to an entry of `otel.events`, without default values.

    Raises UnencodableError if the event has an attribute that belongs to the mapping.
    """
    ours, attributes = split_attributes(event.attributes)
    if ours:
        raise UnencodableError("reserved attribute in a foreign event")
    record: Record = {"name": event.name, "time_ns": event.time_unix_nano}
    if attributes:
        record["attributes"] = attributes
    if event.dropped_attributes_count:
        record["dropped_attributes_count"] = event.dropped_attributes_count
    return record
