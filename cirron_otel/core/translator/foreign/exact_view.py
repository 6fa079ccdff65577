"""Readable JSON views of OTLP messages, with the message itself if the view is not exact.

Code that writes a view reads it back and compares the result with the message (`is_same`). If they
differ, it adds the encoded message (`raw_of`, under the key `RAW`). Code that reads a view accepts
only the form that this package writes and raises NotCanonicalError for any other. `messages` and
`log_marks` define the views of their messages. (`otel_view` is the tolerant view of a single span.)
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, TypeVar

from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ..events import Record
from ..typed import NotCanonicalError
from ..values import is_int
from .otel_view import UINT32_MAX, write_plain

RAW = "raw"
_M = TypeVar("_M", bound=Message)


def of_type(value: object, kind: type) -> Any:
    """Return `value` if it is of exactly this type. Raises NotCanonicalError."""
    if type(value) is not kind:
        raise NotCanonicalError
    return value


def text_of(value: object) -> str:
    """Return `value` if it is a text that UTF-8 can encode. Raises NotCanonicalError."""
    text = of_type(value, str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise NotCanonicalError from None
    return str(text)


# --- the message itself -------------------------------------------------------------------------


def is_same(a: Message, b: Message) -> bool:
    """Return whether two messages are the same on the wire."""
    return a.SerializeToString() == b.SerializeToString()


def raw_of(message: Message) -> str:
    """Return the encoded message, in base64."""
    return base64.b64encode(message.SerializeToString()).decode("ascii")


def unraw(kind: type[_M], text: object) -> _M:
    """Decode the result of `raw_of`. Raises NotCanonicalError, DecodeError."""
    try:
        return kind.FromString(base64.b64decode(of_type(text, str), validate=True))
    except (binascii.Error, ValueError):
        raise NotCanonicalError from None


# --- views --------------------------------------------------------------------------------------


def view_attributes(pairs: Iterable[KeyValue]) -> Record:
    """Return a readable JSON view of any attribute list; it is exact wherever JSON can be."""
    return {pair.key: value_view(pair.value) for pair in pairs}


def value_view(value: AnyValue) -> Any:
    """Return a readable JSON view of a value; it is exact wherever JSON can be."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [value_view(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return view_attributes(value.kvlist_value.values)
    content = getattr(value, kind)
    if isinstance(content, bytes):
        return base64.b64encode(content).decode("ascii")
    if isinstance(content, float) and (
        content != content or content in (float("inf"), float("-inf"))
    ):
        return str(content)
    return content


def counted_attributes(owner: Resource | InstrumentationScope) -> Record:
    """Return a view of a message's attributes, and of the number of dropped ones."""
    record: Record = {}
    if owner.attributes:
        record["attributes"] = view_attributes(owner.attributes)
    if owner.dropped_attributes_count:
        record["dropped_attributes_count"] = owner.dropped_attributes_count
    return record


def write_counted_attributes(owner: Any, record: Record) -> None:
    """Write such a view back, as far as it can be encoded. Raises NotCanonicalError."""
    write_plain(owner.attributes, of_type(record.get("attributes", {}), dict))
    count = record.get("dropped_attributes_count", 0)
    if not is_int(count, 0, UINT32_MAX):
        raise NotCanonicalError
    owner.dropped_attributes_count = count
