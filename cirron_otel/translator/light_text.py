"""The JSON text of what a span read by light_spans has: its attributes, its status, and the like.

No value is made of what becomes text at once: an attribute stands in thousands of spans, and its
text is made once. What JSON cannot say exactly, and what is not in canonical form, is for the slow
way (SlowError).
"""

from __future__ import annotations

import struct
from json.encoder import encode_basestring as quoted
from typing import Any

import msgspec
from msgspec import Struct
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from .events import Record
from .light_spans import is_canonical

_INFINITE = float("inf")
_MOST_KNOWN = 2048
_LARGEST_KNOWN = 128
"""Bytes of what is kept, but for short KeyValues: they are at most 258."""
_LARGEST = 65_536
"""Bytes of what is made text here: a character of four bytes makes all of its text as wide."""
_KEY, _VALUE, _STRING, _BOOL, _INT, _DOUBLE = 0x0A, 0x12, 0x0A, 0x10, 0x18, 0x21
_SIZES = {
    _BOOL: range(2, 3),
    _INT: range(2, 11),  # a tag and nine bytes: all that are not negative
    _DOUBLE: range(9, 10),
}
"""Of a value that is a number, with its tag, bytes."""
_TEXT_SIZES = range(2, 128)
"""The same of a text, and its length."""
_SHORTEST = 7
"""A key of a letter and a number of a byte."""
_FEW = 64
"""So many values of a key are kept before they are too many."""
_READ: dict[Any, set[str]] = {
    KeyValue: {"key", "value"},
    Status: {"code", "message"},
    Span.Link: {"trace_id", "span_id", "trace_state", "flags", "attributes",
                "dropped_attributes_count"},
    Span.Event: {"name", "time_unix_nano", "attributes", "dropped_attributes_count"},
}  # fmt: skip
"""The fields that are told here; OTLP has more (`key_strindex`, for profiles), and may get more."""
_UNREAD = {
    kind: frozenset(field.name for field in kind.DESCRIPTOR.fields) - names
    for kind, names in _READ.items()
}
_VALUES = frozenset({"string_value", "int_value", "bool_value", "double_value"})
_BOOLS = {b"\0": "false", b"\1": "true"}
_double = struct.Struct("<d").unpack

_encode = msgspec.json.Encoder().encode


class SlowError(Exception):
    """Something that a readable view does not say exactly."""


class _Head(Struct, gc=False):
    """What the first bytes of serialised KeyValues say, up to their value's kind."""

    key: str
    member: str
    """The key as JSON, and a colon."""
    size: int
    """Of the whole KeyValue, bytes."""
    kind: int
    """The tag of its value."""
    text: int
    """Bytes of the text that its value is."""
    kept: _Kept
    """Of the key."""


class _Kept(Struct, gc=False):
    """How many values of a key are kept, or were."""

    values: int = 0


class _Memo(dict[Any, Any]):
    """What was made of bytes, by them; a few at a time. What is missing is made (`__missing__`)."""

    def keep(self, key: Any, found: Any) -> Any:
        """Know it from now on; returns it."""
        if len(self) >= _MOST_KNOWN:
            self.clear()
        self[key] = found
        return found


class Pairs(_Memo):
    """The key of a serialised KeyValue, and its member of a JSON object: key, colon and value.

    A key whose values are many is not worth keeping. Raises SlowError; DecodeError and
    UnicodeDecodeError for what is no KeyValue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heads = _Heads()

    def clear(self) -> None:
        """Know nothing any more but whose values are many."""
        super().clear()
        self._heads.forget()

    def __missing__(self, data: bytes) -> tuple[str, str]:
        size = len(data)
        if size >= _SHORTEST:
            begins = data[: data[1] + 5]
            head = self._heads[begins]
            if head is not None and head.size == size:
                found = _short(data, head, len(begins))
                if found is not None:
                    if head.kept.values < _FEW:
                        head.kept.values += 1
                        self.keep(data, found)
                    return found
        return self._slowly(data)

    def _slowly(self, data: bytes) -> tuple[str, str]:
        pair = _read(KeyValue, data)
        key = pair.key
        found = key, f"{quoted(key)}:{_encode(_value(pair.value)).decode()}"
        kept = self._heads.kept(key)
        if kept.values < _FEW and len(data) <= _LARGEST_KNOWN:
            kept.values += 1
            self.keep(data, found)
        return found


class _Heads(_Memo):
    """By the first bytes of KeyValues: their _Head, None where it says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, _Kept] = {}

    def __missing__(self, data: bytes) -> _Head | None:
        head: _Head | None = self.keep(data, self._head(data))
        return head

    def forget(self) -> None:
        """Nothing is kept any more of keys with few values."""
        for kept in self._kept.values():
            kept.values = kept.values if kept.values >= _FEW else 0

    def kept(self, key: str) -> _Kept:
        """How many are kept of a key."""
        if key not in self._kept:
            if len(self._kept) >= _MOST_KNOWN:
                self._kept.clear()
            self._kept[key] = _Kept()
        return self._kept[key]

    def _head(self, data: bytes) -> _Head | None:
        """None where it is no short one of a text or a number: lengths and tags are a byte each."""
        at = len(data) - 3
        if data[0] != _KEY or data[1] > 127 or at != data[1] + 2 or data[at] != _VALUE:
            return None
        size, kind = data[at + 1], data[at + 2]
        if size not in (_TEXT_SIZES if kind == _STRING else _SIZES.get(kind, ())):
            return None
        key = data[2:at].decode()
        return _Head(key, f"{quoted(key)}:", at + 2 + size, kind, size - 2, self.kept(key))


def _short(data: bytes, head: _Head, at: int) -> tuple[str, str] | None:
    """The value begins at `at`; None where it is not in canonical form, or no such value."""
    if head.kind == _STRING:
        if data[at] != head.text:
            return None
        return head.key, head.member + quoted(data[at + 1 :].decode())
    told = _number(data, at) if head.kind == _INT else _other(head.kind, data[at:])
    return None if told is None else (head.key, head.member + told)


def _other(kind: int, data: bytes) -> str | None:
    if kind == _BOOL:
        return _BOOLS.get(data)
    (number,) = _double(data)
    return _encode(number).decode() if -_INFINITE < number < _INFINITE else None


class Names(_Memo):
    """A text as JSON, by its bytes. Raises SlowError, UnicodeDecodeError."""

    def __missing__(self, data: bytes) -> str:
        if len(data) > _LARGEST:
            raise SlowError
        text = quoted(data.decode())
        return text if len(data) > _LARGEST_KNOWN else self.keep(data, text)


class Ends(_Memo):
    """What most spans have in `otel` behind their trace: by kind, serialised Status, and flags.

    Each member has a comma before it. Raises SlowError, DecodeError.
    """

    def __missing__(self, key: tuple[int, bytes | None, int]) -> str:
        kind, status, flags = key
        told: Record = {}
        if kind:
            told["kind"] = kind
        if status is not None:
            told["status"] = _status(status)
        if flags:
            told["flags"] = flags
        text = _members(told)
        is_long = status is not None and len(status) > _LARGEST_KNOWN
        return text if is_long else self.keep(key, text)


def _number(data: bytes, at: int) -> str | None:
    """The number that the rest of `data` is, in the fewest bytes; None where it is none."""
    last = data[-1]
    if last > 0x7F or (not last and len(data) > at + 1):
        return None  # it is cut off, or in more bytes than it needs
    number = last
    for byte in data[-2 : at - 1 : -1]:
        if byte < 0x80:
            return None  # there is more than a number
        number = number << 7 | byte & 0x7F
    return str(number)


def _read(kind: Any, data: bytes) -> Any:
    """A message that has nothing but what is told of it here."""
    if len(data) > _LARGEST:
        raise SlowError
    message = kind.FromString(data)
    if not is_canonical(message, data):
        raise SlowError
    unread = _UNREAD[kind]
    if unread and any(field.name in unread for field, _ in message.ListFields()):
        raise SlowError
    return message


def _members(told: Record) -> str:
    return "," + _encode(told)[1:-1].decode() if told else ""


def _status(data: bytes) -> Record:
    status = _read(Status, data)
    found: Record = {}
    if code := status.code:
        found["code"] = code
    if told := status.message:
        found["message"] = told
    return found


# --- what few spans have --------------------------------------------------------------------------


def rare(span: Any) -> str:
    """What most spans have not, as `Ends` tells it."""
    told: Record = {}
    if state := span.trace_state:
        told["trace_state"] = state.decode()
    if dropped := span.dropped_attributes_count:
        told["dropped_attributes_count"] = dropped
    if dropped := span.dropped_events_count:
        told["dropped_events_count"] = dropped
    if dropped := span.dropped_links_count:
        told["dropped_links_count"] = dropped
    if links := span.links[:]:
        told["links"] = [_link(_read(Span.Link, link)) for link in links]
    if events := span.events[:]:
        told["events"] = [_event(_read(Span.Event, event)) for event in events]
    return _members(told)


def _link(link: Span.Link) -> Record:
    record: Record = {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}
    if state := link.trace_state:
        record["trace_state"] = state
    if flags := link.flags:
        record["flags"] = flags
    if dropped := link.dropped_attributes_count:
        record["dropped_attributes_count"] = dropped
    if attributes := link.attributes:
        record["attributes"] = _attributes(attributes)
    return record


def _event(event: Span.Event) -> Record:
    record: Record = {"name": event.name, "time_ns": event.time_unix_nano}
    if attributes := event.attributes:
        record["attributes"] = _attributes(attributes)
    if dropped := event.dropped_attributes_count:
        record["dropped_attributes_count"] = dropped
    return record


def _attributes(pairs: Any) -> dict[str, Any]:
    attrs = {pair.key: _value(pair.value) for pair in pairs}
    if len(attrs) != len(pairs) or any(pair.key_strindex for pair in pairs):
        raise SlowError
    return attrs


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_scalar(item, item.WhichOneof("value")) for item in value.array_value.values]
    return _scalar(value, kind)


def _scalar(value: Any, kind: str | None) -> Any:
    if kind not in _VALUES:
        raise SlowError
    found = getattr(value, kind)
    if kind == "double_value" and not -_INFINITE < found < _INFINITE:
        raise SlowError
    return found
