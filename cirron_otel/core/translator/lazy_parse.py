"""Parse requests with few objects: creating objects is most of the cost of parsing.

The messages have OTLP's field numbers, but spans, resources, scopes and texts stay bytes. If data
parses as such a message and serialises to the same bytes after its unknown fields are discarded,
then it has only known fields, in canonical order, at the levels that were parsed.
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
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, TracesData

_READ = {
    "TracesData": {"resource_spans"},
    "ResourceSpans": {"resource", "scope_spans", "schema_url"},
    "ScopeSpans": {"scope", "spans", "schema_url"},
}
"""The fields that are read: others, of a newer OTLP, are unknown and take the generic path."""
_NESTED = (ResourceSpans.DESCRIPTOR, ScopeSpans.DESCRIPTOR)
_PACKAGE = "cirron_otel.light"


def _light() -> Any:
    file = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for kind in (TracesData, ResourceSpans, ScopeSpans):
        message = file.message_type.add(name=kind.DESCRIPTOR.name)
        for field in kind.DESCRIPTOR.fields:
            if field.name in _READ[message.name]:
                _add_field(message, field)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.TracesData"))


def _add_field(message: DescriptorProto, field: FieldDescriptor) -> None:
    lazy_field = message.field.add(name=field.name, number=field.number)
    lazy_field.type = FieldDescriptorProto.TYPE_BYTES
    lazy_field.label = FieldDescriptorProto.LABEL_OPTIONAL
    inner = field.message_type
    if field.is_repeated:
        lazy_field.label = FieldDescriptorProto.LABEL_REPEATED
    if inner in _NESTED:
        lazy_field.type = FieldDescriptorProto.TYPE_MESSAGE
        lazy_field.type_name = f".{_PACKAGE}.{inner.name}"
    elif inner is not None and not field.is_repeated:  # an empty one differs from an absent one
        lazy_field.proto3_optional, lazy_field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


_Light: Any = _light()


def read_light(data: bytes) -> Any:
    """Parse a TracesData message, leaving its spans as unchecked bytes.

    Returns None if the message is not in canonical form. Raises DecodeError if `data` is not a
    TracesData message.
    """
    message = _Light.FromString(data)
    return message if is_canonical(message, data) else None


def is_canonical(message: Message, data: bytes) -> bool:
    """Return whether `data` has only the content of `message`, parsed from it and changed here."""
    message.DiscardUnknownFields()
    return bool(message.SerializeToString() == data)
