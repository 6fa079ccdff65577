"""Readable JSON views of OTLP messages.

`write` and `read` convert the fields of a span that have no Cirron field to the record's `otel`
object, which contains only values that differ from the default. `write` is tolerant, since the
object may come from any source: every caller compares the result, which detects values that `write`
could not write.

The other functions are for exact views, which `messages` and `log_marks` define. Code that creates
such a view restores the message from it and compares the two (`is_same`). If they differ, it adds
the encoded message to the view (`raw_of`, under the key `RAW`). Code that reads an exact view
raises NotCanonicalError if this package cannot have written the view.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ..events import Record
from ..typed import NotCanonicalError
from ..values import add, encodable, is_int, read_attributes

UINT32_MAX = 2**32 - 1
KIND_INTERNAL = Span.SPAN_KIND_INTERNAL
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


def unhex(value: object) -> bytes | None:
    """Decode lower-case hex text; return None if `value` is anything else."""
    if not isinstance(value, str) or _HEX.fullmatch(value) is None:
        return None
    return bytes.fromhex(value)


def write(span: Span, otel: Record, default_kind: int) -> None:
    """Set kind, status, flags, trace state, links and dropped counts of `span`."""
    kind = otel.get("kind", default_kind)
    if is_int(kind, -(2**31), 2**31 - 1):
        span.kind = kind
    _write_status(span, otel.get("status"))
    _write_count(span, otel, "flags")
    _write_text(span, otel, "trace_state")
    for field in ("dropped_attributes_count", "dropped_events_count", "dropped_links_count"):
        _write_count(span, otel, field)
    links = otel.get("links")
    for link in links if isinstance(links, list) else ():
        if isinstance(link, dict):
            _write_link(span.links.add(), link)


def _write_count(target: Any, source: Record, field: str) -> None:
    value = source.get(field)
    if is_int(value, 0, UINT32_MAX):
        setattr(target, field, value)


def _write_text(target: Any, source: Record, field: str) -> None:
    value = source.get(field)
    if isinstance(value, str) and encodable(value):
        setattr(target, field, value)


def _write_status(span: Span, status: object) -> None:
    if not isinstance(status, dict):
        return
    span.status.SetInParent()
    code = status.get("code")
    if is_int(code, -(2**31), 2**31 - 1):
        span.status.code = code  # type: ignore[assignment]
    _write_text(span.status, status, "message")


def _write_link(link: Span.Link, record: Record) -> None:
    link.trace_id = unhex(record.get("trace_id")) or b""
    link.span_id = unhex(record.get("span_id")) or b""
    _write_text(link, record, "trace_state")
    _write_count(link, record, "flags")
    _write_count(link, record, "dropped_attributes_count")
    attributes = record.get("attributes")
    if isinstance(attributes, dict):
        write_plain(link.attributes, attributes)


def write_plain(target: Any, attributes: Record) -> None:
    """Append attributes with unescaped keys; omit keys that protobuf cannot encode."""
    for key, value in attributes.items():
        if encodable(key):
            add(target, key, value)


AttributeReader = Callable[[Iterable[KeyValue]], Record]


def read(span: Span, default_kind: int, attributes: AttributeReader = read_attributes) -> Record:
    """Return the `otel` object of a span, without its ids, events and resource.

    `attributes` decodes the attributes of links. It may raise an error if an attribute has no exact
    JSON form.
    """
    otel: Record = {}
    if span.kind != default_kind:
        otel["kind"] = int(span.kind)
    if span.HasField("status"):
        otel["status"] = _status(span.status)
    for field in ("flags", "trace_state"):
        if value := getattr(span, field):
            otel[field] = value
    for field in ("dropped_attributes_count", "dropped_events_count", "dropped_links_count"):
        if value := getattr(span, field):
            otel[field] = value
    if span.links:
        otel["links"] = [_link(link, attributes) for link in span.links]
    return otel


def _status(status: Status) -> Record:
    record: Record = {}
    if status.code:
        record["code"] = int(status.code)
    if status.message:
        record["message"] = status.message
    return record


def _link(link: Span.Link, attributes: AttributeReader) -> Record:
    record: Record = {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}
    for field in ("trace_state", "flags", "dropped_attributes_count"):
        if value := getattr(link, field):
            record[field] = value
    if link.attributes:
        record["attributes"] = attributes(link.attributes)
    return record


RAW = "raw"
_M = TypeVar("_M", bound=Message)


def of_type(value: object, kind: type) -> Any:
    """Return `value` if its type is exactly `kind`, else raise NotCanonicalError."""
    if type(value) is not kind:
        raise NotCanonicalError
    return value


def text_of(value: object) -> str:
    """Return `value` if it is a string that UTF-8 can encode, else raise NotCanonicalError."""
    text = of_type(value, str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise NotCanonicalError from None
    return str(text)


# --- the message itself -------------------------------------------------------------------------


def is_same(a: Message, b: Message) -> bool:
    """Return whether two messages have the same serialised form."""
    return a.SerializeToString() == b.SerializeToString()


def raw_of(message: Message) -> str:
    """Return the serialised message in base64."""
    return base64.b64encode(message.SerializeToString()).decode("ascii")


def unraw(kind: type[_M], text: object) -> _M:
    """Decode the result of `raw_of`.

    Raises NotCanonicalError if `text` is not base64, and DecodeError if it is not a message.
    """
    try:
        return kind.FromString(base64.b64decode(of_type(text, str), validate=True))
    except (binascii.Error, ValueError):
        raise NotCanonicalError from None


# --- views --------------------------------------------------------------------------------------


def view_attributes(pairs: Iterable[KeyValue]) -> Record:
    """Return a readable JSON view of any attribute list, exact wherever JSON allows it."""
    return {pair.key: value_view(pair.value) for pair in pairs}


def value_view(value: AnyValue) -> Any:
    """Return a readable JSON view of a value, exact wherever JSON allows it."""
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
    """Return a view of a message's attributes and of its number of dropped attributes."""
    record: Record = {}
    if owner.attributes:
        record["attributes"] = view_attributes(owner.attributes)
    if owner.dropped_attributes_count:
        record["dropped_attributes_count"] = owner.dropped_attributes_count
    return record


def write_counted_attributes(owner: Any, record: Record) -> None:
    """Write a view from `counted_attributes` back; keys that protobuf cannot encode are omitted.

    Raises NotCanonicalError if the view is not valid.
    """
    write_plain(owner.attributes, of_type(record.get("attributes", {}), dict))
    count = record.get("dropped_attributes_count", 0)
    if not is_int(count, 0, UINT32_MAX):
        raise NotCanonicalError
    owner.dropped_attributes_count = count
