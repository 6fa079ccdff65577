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
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import (
    ResourceSpans,
    ScopeSpans,
    Span,
    Status,
    TracesData,
)

_RARE = ("trace_state", "dropped_attributes_count", "events", "dropped_events_count", "links",
         "dropped_links_count")  # fmt: skip
_NESTED = (ResourceSpans.DESCRIPTOR, ScopeSpans.DESCRIPTOR, Span.DESCRIPTOR)
_INFINITE = float("inf")
_MOST_KNOWN = 2048
_LARGEST_KNOWN = 128
_KEY, _VALUE, _STRING, _INT = 0x0A, 0x12, 0x0A, 0x18


class SlowError(Exception):
    """Something that a readable view does not say exactly."""


def _light(name: str, left_out: tuple[str, ...]) -> Any:
    """TracesData without some fields of its spans, which are unknown then."""
    package = f"cirron_otel.{name}"
    file = FileDescriptorProto(name=f"cirron_otel/{name}.proto", package=package, syntax="proto3")
    for kind in (TracesData, ResourceSpans, ScopeSpans, Span):
        message = file.message_type.add(name=kind.DESCRIPTOR.name)
        for field in kind.DESCRIPTOR.fields:
            if field.name not in left_out:
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


def read_light(data: bytes) -> tuple[Any, bool]:
    """The spans of a TracesData, and whether some may have more than most; None where it cannot be.

    Raises DecodeError for what is no such message.
    """
    for kind in _KINDS:
        message = kind.FromString(data)
        if is_canonical(message, data):
            return message, kind is not _KINDS[0]
    return None, True


def is_canonical(message: Message, data: bytes) -> bool:
    """Whether there is nothing in `data` but what `message`, read from it, knows; it is changed."""
    message.DiscardUnknownFields()
    return bool(message.SerializeToString() == data)


class Values:
    """Reads attributes and statuses; knows the last ones."""

    def __init__(self) -> None:
        self._pairs: dict[bytes, tuple[str, Any]] = {}
        self._statuses: dict[bytes, dict[str, Any]] = {}

    def attributes(self, pairs: list[bytes]) -> dict[str, Any]:
        """Of serialised KeyValues. Raises SlowError where they are more than JSON says."""
        known, learn = self._pairs.get, self._learn
        attrs = dict([known(pair) or learn(pair) for pair in pairs])
        if len(attrs) != len(pairs):
            raise SlowError  # a key twice
        return attrs

    def _learn(self, data: bytes) -> tuple[str, Any]:
        found = _short(data)
        if found is None:
            pair = KeyValue.FromString(data)
            if not is_canonical(pair, data):
                raise SlowError
            found = pair.key, _value(pair.value)
            if len(data) > _LARGEST_KNOWN:
                return found
        pairs = self._pairs
        if len(pairs) >= _MOST_KNOWN:
            pairs.clear()
        pairs[data] = found
        return found

    def status(self, data: bytes) -> dict[str, Any]:
        """Of a serialised Status, as a record; not to be changed."""
        found = self._statuses.get(data)
        if found is not None:
            return found
        status = Status.FromString(data)
        if not is_canonical(status, data):
            raise SlowError
        found = {}
        if code := status.code:
            found["code"] = code
        if told := status.message:
            found["message"] = told
        if len(data) <= _LARGEST_KNOWN:
            if len(self._statuses) >= _MOST_KNOWN:
                self._statuses.clear()
            self._statuses[data] = found
        return found


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Of KeyValues. Raises SlowError as Values.attributes does."""
    attrs = {pair.key: _value(pair.value) for pair in pairs}
    if len(attrs) != len(pairs):
        raise SlowError
    return attrs


def _short(data: bytes) -> tuple[str, Any] | None:
    """A short key with a short text or a small number, in canonical form, as most are; else None.

    All lengths and tags in it are a byte each.
    """
    size = len(data)
    if not 7 < size <= _LARGEST_KNOWN or data[0] != _KEY:
        return None
    at = data[1] + 2
    if at + 4 > size or data[at] != _VALUE or data[at + 1] != size - at - 2:
        return None
    kind = data[at + 2]
    if kind == _STRING and data[at + 3] == size - at - 4:
        return data[2:at].decode(), data[at + 4 :].decode()
    if kind == _INT and size <= at + 8:
        last = data[-1]
        if last > 0x7F or (not last and size > at + 4):
            return None  # it is cut off, or in more bytes than it needs
        number = last
        for byte in data[-2 : at + 2 : -1]:
            if byte < 0x80:
                return None  # there is more than a number
            number = number << 7 | byte & 0x7F
        return data[2:at].decode(), number
    return None


def _value(value: Any) -> Any:
    if value.WhichOneof("value") == "array_value":
        return [_element(item) for item in value.array_value.values]
    return _element(value)


def _element(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind not in ("string_value", "int_value", "bool_value", "double_value"):
        raise SlowError
    found = getattr(value, kind)
    if kind == "double_value" and not -_INFINITE < found < _INFINITE:
        raise SlowError
    return found
