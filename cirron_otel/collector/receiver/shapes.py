"""Descriptors that make upb count or check elements while creating almost no objects.

A shape has the message types and field numbers of OTLP, but its message fields are not repeated:
upb merges the elements into one message, as it does for any field that occurs more than once. In a
shape, the fields to be counted have the type `repeated bytes`, which takes 16 bytes per element.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ...errors import InputError
from .consumer import ReceivedSignal

ROOTS: dict[ReceivedSignal, Descriptor] = {
    ReceivedSignal.TRACES: TracesData.DESCRIPTOR,
    ReceivedSignal.LOGS: LogsData.DESCRIPTOR,
    ReceivedSignal.METRICS: MetricsData.DESCRIPTOR,
}
"""The root message of each signal; on the wire, it is identical to an export request."""

VALUES = -1
"""The `depth` of the shape that counts the elements of values (arrays and key-value lists), and
checks all other fields."""

ALL = 0
"""The `depth` of the shape that checks all fields and counts none."""

TEXT = "text"
"""The kind of elements that are strings, not messages."""

_CONTAINERS = (ArrayValue.DESCRIPTOR, KeyValueList.DESCRIPTOR)
_OF_VALUES = (*_CONTAINERS, AnyValue.DESCRIPTOR, KeyValue.DESCRIPTOR)


class MalformedError(InputError):
    """The bytes are not a message of the expected type."""


class MessageShape(NamedTuple):
    """A message class with which upb counts the elements at one depth."""

    message: Any
    """The message class."""
    kind: Descriptor
    counted: list[tuple[str, str, Descriptor | None]]
    """The fields whose elements stay bytes: name, kind, and the elements' type if they may contain
    further elements."""
    inner: list[tuple[str, MessageShape]]
    """The fields with messages that contain counted fields."""

    def read(self, data: bytes) -> tuple[Any, MessageShape]:
        """Return the parsed `data`, and this shape. Raises MalformedError."""
        try:
            return self.message.FromString(data), self
        except DecodeError:
            raise MalformedError(
                f"{len(data)} bytes that are not a protobuf message {self.kind.full_name}:"
                " expected a serialised OTLP request"
            ) from None


@cache
def shape_for(kind: Descriptor, depth: int) -> MessageShape:
    """Return the shape that counts the elements `depth` levels of repeated fields below `kind`.

    At a depth of 1 or more, values and strings are not read; VALUES and ALL do that.
    """
    message = GetMessageClass(_pool(depth).FindMessageTypeByName(_name(kind, depth)))
    shape = MessageShape(message, kind, [], [])
    for field in kind.fields if depth != ALL else ():
        inner, below = field.message_type, _depth_within(field, depth)
        if _is_counted(field, depth):
            holds_more = inner is not None and (depth == VALUES or inner not in _OF_VALUES)
            name = inner.name if inner is not None else TEXT
            shape.counted.append((field.name, name, inner if holds_more else None))
        elif below is not None and inner is not None:
            within = shape_for(inner, below)
            if within.counted or within.inner:
                shape.inner.append((field.name, within))
    return shape


def is_element(field: FieldDescriptor) -> bool:
    """Return whether each occurrence of a field is an element.

    Packed numbers do not count as elements: they take no more memory than on the wire.
    """
    return field.is_repeated and (
        field.message_type is not None or field.type == FieldDescriptor.TYPE_STRING
    )


def _is_counted(field: FieldDescriptor, depth: int) -> bool:
    if depth == VALUES:
        return field.containing_type in _CONTAINERS
    return depth == 1 and is_element(field) and field.containing_type not in _CONTAINERS


def _depth_within(field: FieldDescriptor, depth: int) -> int | None:
    """Return the depth for reading a field's content; None if it stays bytes."""
    if depth == ALL:
        return ALL
    if _is_counted(field, depth):
        return None
    if depth == VALUES:
        return VALUES
    if field.message_type in _OF_VALUES or field.type == FieldDescriptor.TYPE_STRING:
        return None
    return depth - is_element(field)


_descriptors = DescriptorPool()


@cache
def _pool(depth: int) -> DescriptorPool:
    """Return the pool of all shapes after adding those of `depth`."""
    file = FileDescriptorProto(name=_package(depth), package=_package(depth), syntax="proto3")
    if depth > 1:
        _pool(depth - 1)
        file.dependency.append(_package(depth - 1))
    for kind in _kinds():
        _describe(file.message_type.add(name=kind.full_name.replace(".", "_")), kind, depth)
    _descriptors.AddSerializedFile(file.SerializeToString())
    return _descriptors


def _package(depth: int) -> str:
    return "cirron.shapes." + {ALL: "all", VALUES: "values"}.get(depth, f"depth{depth}")


def _name(kind: Descriptor, depth: int) -> str:
    return f"{_package(depth)}.{kind.full_name.replace('.', '_')}"


@cache
def _kinds() -> tuple[Descriptor, ...]:
    """Return every message type that can occur in OTLP requests."""
    kinds: dict[Descriptor, None] = dict.fromkeys(ROOTS.values())
    waiting = list(kinds)
    while waiting:
        for field in waiting.pop().fields:
            if field.message_type is not None and field.message_type not in kinds:
                kinds[field.message_type] = None
                waiting.append(field.message_type)
    return tuple(kinds)


def _describe(target: DescriptorProto, kind: Descriptor, depth: int) -> None:
    """Add the fields of `kind` without its oneofs: in a oneof, one member would replace another."""
    of = FieldDescriptorProto
    for field in kind.fields:
        below = _depth_within(field, depth)
        described = target.field.add(name=field.name, number=field.number, label=of.LABEL_OPTIONAL)
        if _is_counted(field, depth) or (field.is_repeated and not is_element(field)):
            described.label = of.LABEL_REPEATED
        if below is None:
            described.type = of.TYPE_BYTES
        elif field.message_type is not None:
            described.type = of.TYPE_MESSAGE
            described.type_name = "." + _name(field.message_type, below)
        else:
            described.type = of.TYPE_INT32 if field.type == of.TYPE_ENUM else field.type  # type: ignore[assignment]
