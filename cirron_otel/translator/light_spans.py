"""Spans read from the wire with few objects: to make those is what costs most in reading them.

The messages have OTLP's field numbers; only, texts and what is no plain number stay bytes. What
parses as one and, its unknown fields discarded, serialises to the very bytes that came, holds known
fields alone, in canonical order, as far as it is looked into. Values are looked into when they are
read: an attribute stands in thousands of spans, and is read once.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

_RARE = ("trace_state", "dropped_attributes_count", "events", "dropped_events_count", "links",
         "dropped_links_count")  # fmt: skip
_READ = {
    "TracesData": {"resource_spans"},
    "ResourceSpans": {"resource", "scope_spans", "schema_url"},
    "ScopeSpans": {"scope", "spans", "schema_url"},
    "Span": {
        "trace_id", "span_id", "trace_state", "parent_span_id", "flags", "name", "kind",
        "start_time_unix_nano", "end_time_unix_nano", "attributes", "dropped_attributes_count",
        "events", "dropped_events_count", "links", "dropped_links_count", "status",
    },
}  # fmt: skip
"""The fields that are read: others, of a newer OTLP, are unknown, and so for the slow way."""
_NESTED = (ResourceSpans.DESCRIPTOR, ScopeSpans.DESCRIPTOR, Span.DESCRIPTOR)


def _light(name: str, left_out: tuple[str, ...]) -> Any:
    """TracesData without some fields of its spans, which are unknown then."""
    package = f"cirron_otel.{name}"
    file = FileDescriptorProto(name=f"cirron_otel/{name}.proto", package=package, syntax="proto3")
    for kind in (TracesData, ResourceSpans, ScopeSpans, Span):
        message = file.message_type.add(name=kind.DESCRIPTOR.name)
        for field in kind.DESCRIPTOR.fields:
            if field.name in _READ[message.name] and field.name not in left_out:
                _add_field(message, field, package)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{package}.TracesData"))


def _add_field(message: DescriptorProto, field: FieldDescriptor, package: str) -> None:
    made = message.field.add(name=field.name, number=field.number, type=field.type)
    made.label = FieldDescriptorProto.LABEL_OPTIONAL
    if field.is_repeated:
        made.label = FieldDescriptorProto.LABEL_REPEATED
    inner = field.message_type
    if field.enum_type is not None:
        made.type = FieldDescriptorProto.TYPE_INT32
    elif field.type == FieldDescriptor.TYPE_STRING:
        made.type = FieldDescriptorProto.TYPE_BYTES
    elif inner in _NESTED:
        made.type_name = f".{package}.{inner.name}"
    elif inner is not None:
        made.type = FieldDescriptorProto.TYPE_BYTES
        if not field.is_repeated:  # an empty one is not the same as none
            made.proto3_optional, made.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


_KINDS: tuple[Any, ...] = (_light("plain", _RARE), _light("light", ()))


def read_light(data: bytes, *, may_be_plain: bool = True) -> tuple[Any, bool]:
    """The spans of a TracesData, and whether some may have more than most; None where it cannot be.

    Raises DecodeError for what is no such message.
    """
    for kind in _KINDS if may_be_plain else _KINDS[1:]:
        message = kind.FromString(data)
        if is_canonical(message, data):
            return message, kind is not _KINDS[0]
    return None, True


def is_canonical(message: Message, data: bytes) -> bool:
    """Whether there is nothing in `data` but what `message`, read from it, knows; it is changed."""
    message.DiscardUnknownFields()
    return bool(message.SerializeToString() == data)
