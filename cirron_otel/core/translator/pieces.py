"""Cached pieces of protobuf, from which the fast path builds messages.

The `tag` of an attribute is the tag of the field `attributes` in the message that contains it.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ... import exactjson, semconv
from ...semconv import MAX_DEPTH
from .typed import NotCanonicalError
from .values import INT64_MAX, INT64_MIN, add, add_escaped, escape, split_attributes

_CACHED = 4096
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode

SHORT = [bytes([n]) for n in range(128)]
"""All one-byte varints, by value."""


def varint(value: int) -> bytes:
    """Return the base-128 varint of a non-negative value."""
    if value < 128:
        return SHORT[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def sized(data: bytes) -> bytes:
    """Return `data` preceded by its length."""
    return varint(len(data)) + data


class IntAttribute:
    """Encodes int attributes with one key as fields of the message that contains them."""

    def __init__(self, tag: bytes, key: str) -> None:
        """`tag` is the owner's field `attributes`."""
        self._tag = tag
        self._key = b"\x0a" + sized(key.encode()) + b"\x12"
        self._cache: dict[int, bytes] = {}

    def __call__(self, value: int) -> bytes:
        """Encode the attribute. Raises NotCanonicalError if the value does not fit in 64 bits."""
        attribute = self._cache.get(value)
        if attribute is not None:
            return attribute
        if not INT64_MIN <= value <= INT64_MAX:
            raise NotCanonicalError
        body = b"\x18" + varint(value if value >= 0 else value + 2**64)
        attribute = self._tag + sized(self._key + sized(body))
        if len(self._cache) < _CACHED:
            self._cache[value] = attribute
        return attribute


class TextAttribute:
    """Encodes string attributes with one key as fields of the message that contains them."""

    def __init__(self, tag: bytes, key: str) -> None:
        """`tag` is the owner's field `attributes`."""
        self._tag = tag
        self._key = b"\x0a" + sized(key.encode()) + b"\x12"

    def __call__(self, value: str) -> bytes:
        """Encode the attribute."""
        body = b"\x0a" + sized(value.encode())
        return self._tag + sized(self._key + sized(body))

    def prefix(self, length: int) -> bytes:
        """Return the bytes of the attribute that precede a text of `length` bytes."""
        whole = self("x" * length)
        return whole[: len(whole) - length]


SPAN_TAG, EVENT_TAG = b"\x4a", b"\x1a"


class UserAttributes:
    """Encodes a record's `attrs`, given as JSON text, as fields of a span or of an event."""

    def __init__(self, owner: type[Any], tag: bytes) -> None:
        """`owner` is the class of the message with the attributes; `tag` is the field's tag."""
        self._owner, self._tag = owner, tag
        self._cache: dict[bytes, bytes] = {}
        self._keys: dict[str, bytes] = {}
        """The encoded key followed by the tag of the value, by key."""

    def __call__(self, text: bytes) -> bytes:
        """Encode the attributes. Raises NotCanonicalError if OTLP cannot express all of them."""
        fields = self._cache.get(text)
        if fields is not None:
            return fields
        try:
            attrs = _decode(text)
            is_canonical = _encode(attrs) == text
        except (msgspec.MsgspecError, UnicodeError, OverflowError, RecursionError):
            is_canonical = False
        # If the text is canonical, decoding has lost no digits and no repeated keys.
        fields = self._quickly(attrs) if is_canonical else self._exactly(text)
        if len(self._cache) < _CACHED and len(text) + len(fields) < _CACHED:
            self._cache[text] = fields
        return fields

    def _quickly(self, attrs: dict[str, Any]) -> bytes:
        tag = self._tag
        out: list[bytes] = []
        for key, value in attrs.items():
            body = (self._keys.get(key) or self._key(key)) + sized(_any_value(value))
            out += (tag, sized(body))
        return b"".join(out)

    def _key(self, key: str) -> bytes:
        field = _key_field(escape(key)) + b"\x12"
        if len(self._keys) < _CACHED and len(field) < _CACHED:
            self._keys[key] = field
        return field

    def _exactly(self, text: bytes) -> bytes:
        attrs = exactjson.loads(text)
        if not isinstance(attrs, dict):
            raise NotCanonicalError
        message = self._owner()
        add_escaped(message.attributes, attrs)
        if not exactjson.equal(split_attributes(message.attributes)[1], attrs):
            raise NotCanonicalError
        return bytes(message.SerializeToString())


def _key_field(key: str) -> bytes:
    """Encode the key of a KeyValue; proto3 omits an empty key."""
    return b"\x0a" + sized(key.encode()) if key else b""


def _any_value(value: Any, depth: int = 1) -> bytes:
    """Serialise a JSON value as an AnyValue. Raises NotCanonicalError if OTLP cannot express it."""
    kind = type(value)
    if kind is int:
        if not INT64_MIN <= value <= INT64_MAX:
            raise NotCanonicalError
        return b"\x18" + varint(value if value >= 0 else value + 2**64)
    if kind is float:
        return b"\x21" + pack_double(value)
    if kind is str:
        return b"\x0a" + sized(value.encode())
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    if value is None:
        return b""
    if depth > MAX_DEPTH:
        raise NotCanonicalError
    if kind is list:
        items = [b"\x0a" + sized(_any_value(item, depth + 1)) for item in value]
        return b"\x2a" + sized(b"".join(items))
    pairs = []
    for key, item in value.items():
        body = _key_field(key) + b"\x12" + sized(_any_value(item, depth + 1))
        pairs.append(b"\x0a" + sized(body))
    return b"\x32" + sized(b"".join(pairs))


int_index = IntAttribute(SPAN_TAG, semconv.INDEX)
int_thread = IntAttribute(SPAN_TAG, semconv.THREAD_ID)
int_cpu = IntAttribute(SPAN_TAG, semconv.CPU_NS)
int_gpu = IntAttribute(SPAN_TAG, semconv.GPU_NS)
int_memory = IntAttribute(SPAN_TAG, semconv.MEMORY_PEAK)
int_pid = IntAttribute(SPAN_TAG, semconv.PROCESS_PID)
int_rank = IntAttribute(SPAN_TAG, semconv.RANK)
int_seq = IntAttribute(SPAN_TAG, semconv.SEQ)
int_overhead = IntAttribute(SPAN_TAG, semconv.OVERHEAD_NS)
text_id = TextAttribute(SPAN_TAG, semconv.ID)
text_parent = TextAttribute(SPAN_TAG, semconv.PARENT_ID)
mark_id = TextAttribute(EVENT_TAG, semconv.MARK_ID)
mark_kind = TextAttribute(EVENT_TAG, semconv.MARK_KIND)
mark_text = TextAttribute(EVENT_TAG, semconv.MARK_VALUE)
mark_int = IntAttribute(EVENT_TAG, semconv.MARK_VALUE)
event_seq = IntAttribute(EVENT_TAG, semconv.SEQ)
span_users = UserAttributes(Span, SPAN_TAG)
event_users = UserAttributes(Span.Event, EVENT_TAG)


def _double_prefix() -> bytes:
    event = Span.Event()
    add(event.attributes, semconv.MARK_VALUE, 0.5)
    return bytes(event.SerializeToString())[:-8]


MARK_DOUBLE = _double_prefix()
"""The attribute of a mark's value, up to the eight bytes of the double."""
MARK_ID_PREFIX = mark_id.prefix(32)
ID_PREFIX, PARENT_PREFIX = text_id.prefix(32), text_parent.prefix(32)
"""The bytes that precede the 32 digits in the attributes that contain an id or a parent's id."""


def _bool(value: bool) -> bytes:
    event = Span.Event()
    add(event.attributes, semconv.MARK_VALUE, value)
    return bytes(event.SerializeToString())


MARK_BOOLS = {b"true": _bool(True), b"false": _bool(False)}
"""The attribute of a mark's bool value, by the JSON text of the value."""

pack_times = struct.Struct("<BQBQ").pack
pack_time = struct.Struct("<BQ").pack
pack_double = struct.Struct("<d").pack
