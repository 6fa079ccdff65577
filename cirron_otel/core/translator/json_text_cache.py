"""Parse OTLP lazily, and cache the JSON text of parts that many spans have in common.

`read_light` parses a TracesData but leaves its spans as bytes. The caches map the bytes of a part,
such as a name or a status, to its JSON text. This text is UTF-8 with one character per byte
(Latin-1): multi-byte characters do not widen the string, and it becomes bytes without being
encoded. NotCanonicalError means that the input needs the generic path: JSON cannot express it
exactly, or it is not in the usual form.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status, TracesData

from .events import Record
from .typed import NotCanonicalError

_READ_FIELDS = {
    "TracesData": {"resource_spans"},
    "ResourceSpans": {"resource", "scope_spans", "schema_url"},
    "ScopeSpans": {"scope", "spans", "schema_url"},
}
"""The fields that are read.

A message with other fields, such as one from a newer OTLP version, takes the generic path.
"""
_NESTED = (ResourceSpans.DESCRIPTOR, ScopeSpans.DESCRIPTOR)
_PACKAGE = "cirron_otel.light"


def _shallow_type() -> Any:
    file = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3")
    for kind in (TracesData, ResourceSpans, ScopeSpans):
        message = file.message_type.add(name=kind.DESCRIPTOR.name)
        for field in kind.DESCRIPTOR.fields:
            if field.name in _READ_FIELDS[message.name]:
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
    elif inner is not None and not field.is_repeated:  # an empty message differs from an absent one
        lazy_field.proto3_optional, lazy_field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


_ShallowTraces: Any = _shallow_type()


def read_light(data: bytes) -> Any:
    """Parse a TracesData message, leaving its spans as unchecked bytes.

    The returned message has OTLP's field numbers, but its spans, resources, scopes and strings stay
    bytes. Returns None if `data` is not in canonical form. Raises DecodeError if `data` is not a
    TracesData message.
    """
    message = _ShallowTraces.FromString(data)
    return message if is_canonical(message, data) else None


def is_canonical(message: Message, data: bytes) -> bool:
    """Return whether `data`, from which `message` was parsed, is in canonical form.

    This discards the unknown fields of `message`. If the message then serialises to the same bytes,
    `data` has only known fields, in canonical order, at the levels that were parsed.
    """
    message.DiscardUnknownFields()
    return bool(message.SerializeToString() == data)


MOST_KNOWN = 2048
LARGEST_KNOWN = 128
"""The maximum size in bytes of a cached item that is not an attribute."""
LARGEST = 65_536
"""The maximum size in bytes of a message that `read` parses: its JSON may be four times as long."""
_READ: dict[Any, set[str]] = {
    KeyValue: {"key", "value"},
    AnyValue: {field.name for field in AnyValue.DESCRIPTOR.fields},
    Status: {"code", "message"},
}
"""The fields that `read` accepts.

OTLP has other fields (`key_strindex`, for profiles) and may add new ones.
"""
_UNREAD = {
    kind: frozenset(field.name for field in kind.DESCRIPTOR.fields) - names
    for kind, names in _READ.items()
}
_STATUS, _FLAGS = 0x7A, b"\x85\x01"

_encode = msgspec.json.Encoder().encode


class Memo(dict[Any, Any]):
    """A bounded cache of results, by the input bytes; `__missing__` computes a missing result."""

    def keep(self, key: Any, found: Any) -> Any:
        """Cache a result and return it."""
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[key] = found
        return found


def read(kind: Any, data: bytes) -> Any:
    """Parse a message that has only the fields in `_READ`.

    Raises NotCanonicalError if it has other fields, is not in canonical form or is larger than
    LARGEST, and DecodeError if it cannot be parsed.
    """
    if len(data) > LARGEST:
        raise NotCanonicalError
    message = kind.FromString(data)
    if not is_canonical(message, data):
        raise NotCanonicalError
    unread = _UNREAD[kind]
    if unread and any(field.name in unread for field, _ in message.ListFields()):
        raise NotCanonicalError
    return message


def plain(data: bytes) -> str:
    """Return UTF-8 as a string with one character per byte.

    Raises UnicodeDecodeError if `data` is not UTF-8.
    """
    text = data.decode()
    return text if text.isascii() else data.decode("latin-1")


def quoted(data: bytes) -> str:
    """Return the JSON of a string given as UTF-8. Raises UnicodeDecodeError if it is not UTF-8."""
    return encode_basestring(plain(data))


def encoded(value: Any) -> str:
    """Return a value as JSON."""
    return _encode(value).decode("latin-1")


def length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length of at most 2 MiB at `at`; return it and the position after it.

    Raises NotCanonicalError if the varint is longer than three bytes or not in its shortest form,
    and IndexError if the data ends first.
    """
    low = data[at]
    if low < 0x80:
        return low, at + 1
    high = data[at + 1]
    if 0 < high < 0x80:
        return low & 0x7F | high << 7, at + 2
    highest = data[at + 2]
    if not (high > 0x7F and 0 < highest < 0x80):
        raise NotCanonicalError
    return low & 0x7F | (high & 0x7F) << 7 | highest << 14, at + 3


class Names(Memo):
    """Maps UTF-8 strings to JSON. A lookup raises UnicodeDecodeError if the data is not UTF-8."""

    def __missing__(self, data: bytes) -> str:
        text = quoted(data)
        return text if len(data) > LARGEST_KNOWN else self.keep(data, text)


class Ends(Memo):
    """Maps a span's kind and last bytes (status and flags) to the last members of its `otel`.

    The members are JSON text; each is preceded by a comma. A lookup may raise NotCanonicalError,
    DecodeError or IndexError.
    """

    def __missing__(self, key: tuple[int, bytes]) -> str:
        kind, data = key
        members: Record = {}
        if kind:
            members["kind"] = kind
        at = 0
        if data and data[0] == _STATUS:
            size, begins = length(data, 1)
            at = begins + size
            if at > len(data):
                raise NotCanonicalError
            members["status"] = _status(data[begins:at])
        if rest := data[at:]:
            flags = int.from_bytes(rest[2:], "little")
            if rest[:2] != _FLAGS or len(rest) != 6 or not flags:
                raise NotCanonicalError
            members["flags"] = flags
        text = f",{encoded(members)[1:-1]}" if members else ""
        return text if len(data) > LARGEST_KNOWN else self.keep(key, text)


def _status(data: bytes) -> Record:
    status = read(Status, data)
    members: Record = {}
    if code := status.code:
        members["code"] = code
    if message := status.message:
        members["message"] = message
    return members
