"""TracesData → OTLP/JSON (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding").

Ids are written as hex, 64-bit integers as decimal strings, enums as integers, and other bytes as
base64. A field with its default value is omitted, as proto3 JSON allows. A sub-message that is set
but empty is written as `{}`, so that it is also set after decoding.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any

import orjson
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    EntityRef,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import (
    ResourceSpans,
    ScopeSpans,
    Span,
    Status,
    TracesData,
)

from ...errors import InputError

Json = dict[str, Any]


def traces_to_json(message: TracesData) -> bytes:
    """Return `message` as one line of OTLP/JSON, without a newline.

    Content that JSON cannot represent is omitted; `json_codec.json_losses` lists it. Raises
    InputError if attribute values are nested deeper than protobuf parsers accept (100 messages).
    """
    out: Json = {}
    try:
        if message.resource_spans:
            out["resourceSpans"] = [_resource_spans(m) for m in message.resource_spans]
        return orjson.dumps(out)
    except (RecursionError, orjson.JSONEncodeError):
        raise InputError(
            "attribute values nested deeper than protobuf allows (100 messages): flatten them"
        ) from None


def _resource_spans(message: ResourceSpans) -> Json:
    out: Json = {}
    if message.HasField("resource"):
        out["resource"] = resource_json(message.resource)
    if message.scope_spans:
        out["scopeSpans"] = [_scope_spans(m) for m in message.scope_spans]
    if message.schema_url:
        out["schemaUrl"] = message.schema_url
    return out


def resource_json(message: Resource) -> Json:
    """Return a resource as OTLP/JSON."""
    out: Json = {}
    if message.attributes:
        out["attributes"] = key_values_json(message.attributes)
    if message.dropped_attributes_count:
        out["droppedAttributesCount"] = message.dropped_attributes_count
    if message.entity_refs:
        out["entityRefs"] = [_entity_ref(m) for m in message.entity_refs]
    return out


def _entity_ref(message: EntityRef) -> Json:
    out: Json = {}
    if message.schema_url:
        out["schemaUrl"] = message.schema_url
    if message.type:
        out["type"] = message.type
    if message.id_keys:
        out["idKeys"] = list(message.id_keys)
    if message.description_keys:
        out["descriptionKeys"] = list(message.description_keys)
    return out


def _scope_spans(message: ScopeSpans) -> Json:
    out: Json = {}
    if message.HasField("scope"):
        out["scope"] = scope_json(message.scope)
    if message.spans:
        out["spans"] = [orjson.Fragment(orjson.dumps(_span(m))) for m in message.spans]
    if message.schema_url:
        out["schemaUrl"] = message.schema_url
    return out


def scope_json(message: InstrumentationScope) -> Json:
    """Return an instrumentation scope as OTLP/JSON."""
    out: Json = {}
    if message.name:
        out["name"] = message.name
    if message.version:
        out["version"] = message.version
    if message.attributes:
        out["attributes"] = key_values_json(message.attributes)
    if message.dropped_attributes_count:
        out["droppedAttributesCount"] = message.dropped_attributes_count
    return out


def _span(message: Span) -> Json:
    out: Json = {}
    if value := message.trace_id:
        out["traceId"] = value.hex()
    if value := message.span_id:
        out["spanId"] = value.hex()
    if text := message.trace_state:
        out["traceState"] = text
    if value := message.parent_span_id:
        out["parentSpanId"] = value.hex()
    if number := message.flags:
        out["flags"] = number
    if text := message.name:
        out["name"] = text
    if number := message.kind:
        out["kind"] = number
    if number := message.start_time_unix_nano:
        out["startTimeUnixNano"] = str(number)
    if number := message.end_time_unix_nano:
        out["endTimeUnixNano"] = str(number)
    if message.attributes:
        out["attributes"] = key_values_json(message.attributes)
    if number := message.dropped_attributes_count:
        out["droppedAttributesCount"] = number
    if message.events:
        out["events"] = [_event(m) for m in message.events]
    if number := message.dropped_events_count:
        out["droppedEventsCount"] = number
    if message.links:
        out["links"] = [_link(m) for m in message.links]
    if number := message.dropped_links_count:
        out["droppedLinksCount"] = number
    if message.HasField("status"):
        out["status"] = _status(message.status)
    return out


def _status(message: Status) -> Json:
    out: Json = {}
    if message.message:
        out["message"] = message.message
    if message.code:
        out["code"] = message.code
    return out


def _event(message: Span.Event) -> Json:
    out: Json = {}
    if number := message.time_unix_nano:
        out["timeUnixNano"] = str(number)
    if text := message.name:
        out["name"] = text
    if message.attributes:
        out["attributes"] = key_values_json(message.attributes)
    if number := message.dropped_attributes_count:
        out["droppedAttributesCount"] = number
    return out


def _link(message: Span.Link) -> Json:
    out: Json = {}
    if value := message.trace_id:
        out["traceId"] = value.hex()
    if value := message.span_id:
        out["spanId"] = value.hex()
    if text := message.trace_state:
        out["traceState"] = text
    if message.attributes:
        out["attributes"] = key_values_json(message.attributes)
    if number := message.dropped_attributes_count:
        out["droppedAttributesCount"] = number
    if number := message.flags:
        out["flags"] = number
    return out


def key_values_json(messages: Iterable[KeyValue]) -> list[Json]:
    """Return attributes as OTLP/JSON."""
    return [_key_value(m) for m in messages]


def _key_value(message: KeyValue) -> Json:
    out: Json = {}
    if text := message.key:
        out["key"] = text
    if message.HasField("value"):
        out["value"] = _any_value(message.value)
    if number := message.key_strindex:
        out["keyStrindex"] = number
    return out


def _any_value(message: AnyValue) -> Json:
    kind = message.WhichOneof("value")
    return {} if kind is None else _ANY_VALUE[kind](message)


def double_json(value: float) -> float | str:
    """Return a number, or proto3 JSON's string for a value that is not finite."""
    if value - value == 0.0:
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _array(message: AnyValue) -> Json:
    values = message.array_value.values
    return {"arrayValue": {"values": [_any_value(m) for m in values]} if values else {}}


def _kvlist(message: AnyValue) -> Json:
    values = message.kvlist_value.values
    return {"kvlistValue": {"values": key_values_json(values)} if values else {}}


_ANY_VALUE: dict[str, Callable[[AnyValue], Json]] = {
    "string_value": lambda m: {"stringValue": m.string_value},
    "bool_value": lambda m: {"boolValue": m.bool_value},
    "int_value": lambda m: {"intValue": str(m.int_value)},
    "double_value": lambda m: {"doubleValue": double_json(m.double_value)},
    "array_value": _array,
    "kvlist_value": _kvlist,
    "bytes_value": lambda m: {"bytesValue": b64encode(m.bytes_value).decode("ascii")},
    "string_value_strindex": lambda m: {"stringValueStrindex": m.string_value_strindex},
}
