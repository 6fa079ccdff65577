"""OTLP/JSON ↔ TracesData, exactly, with a list of content that JSON cannot represent.

Google's own json_format is not used: it is wrong for OTLP (base64 ids, enum names) and slow.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator

from google.protobuf.message import Message as Protobuf
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from .json_decode import traces_from_json, traces_from_value
from .json_encode import traces_to_json

__all__ = [
    "has_unknown_fields",
    "json_losses",
    "traces_from_json",
    "traces_from_value",
    "traces_to_json",
]

_NAN = struct.pack("<d", float("nan"))


def has_unknown_fields(message: Protobuf) -> bool:
    """Return whether `message`, or any message in it, has a field that its type does not define.

    The result is exact for every message type; the check is fast for TracesData.
    """
    if not isinstance(message, TracesData):
        return _holds_unknown(message)
    return _shrinks(message) or _holds_unknown_deep_down(message)


def json_losses(message: TracesData, line: bytes | None = None) -> list[str]:
    """Return a line for each kind of content that `traces_to_json(message)` omits.

    A caller that already has the JSON passes it as `line`, to save searches: content that `line`
    does not contain is not searched for in `message`.
    """
    losses = []
    nested = line is None or b'Value":{"values":[' in line
    if _shrinks(message) or (nested and _holds_unknown_deep_down(message)):
        losses.append("unknown protobuf fields cannot be represented in JSON")
    if (line is None or b'"NaN"' in line) and any(map(_holds_odd_nan, _values(message))):
        losses.append("the bits of a non-standard NaN cannot be represented in JSON")
    return losses


def _shrinks(message: TracesData) -> bool:
    """Return whether `message` becomes shorter when its unknown fields are removed.

    DiscardUnknownFields is as fast as parsing, but does not descend below the 64th level.
    """
    known = TracesData()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return known.ByteSize() != message.ByteSize()


def _holds_unknown_deep_down(message: TracesData) -> bool:
    """Return whether attribute values have unknown fields: only they nest below the 64th level."""
    return any(
        _holds_unknown(value)
        for value in _values(message)
        if value.WhichOneof("value") in ("array_value", "kvlist_value")
    )


def _holds_unknown(message: Protobuf) -> bool:
    if len(UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is not None:
            children = value if field.is_repeated else (value,)
            if any(_holds_unknown(child) for child in children):
                return True
    return False


def _holds_odd_nan(value: AnyValue) -> bool:
    kind = value.WhichOneof("value")
    if kind == "double_value":
        number = value.double_value
        return math.isnan(number) and struct.pack("<d", number) != _NAN
    if kind == "array_value":
        return any(_holds_odd_nan(item) for item in value.array_value.values)
    if kind == "kvlist_value":
        return any(_holds_odd_nan(item.value) for item in value.kvlist_value.values)
    return False


def _values(message: TracesData) -> Iterator[AnyValue]:
    """Yield the value of every attribute of a TracesData."""
    for attributes in _attribute_lists(message):
        for attribute in attributes:
            yield attribute.value


def _attribute_lists(message: TracesData) -> Iterator[Iterable[KeyValue]]:
    for resource_spans in message.resource_spans:
        yield resource_spans.resource.attributes
        for scope_spans in resource_spans.scope_spans:
            yield scope_spans.scope.attributes
            for span in scope_spans.spans:
                yield span.attributes
                for event in span.events:
                    yield event.attributes
                for link in span.links:
                    yield link.attributes
