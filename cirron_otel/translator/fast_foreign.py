"""OTLP of any service to the text of a batch: the fast way of `foreign.decode_foreign`.

The proof that nothing is lost costs one serialisation a request: what parses and, its unknown
fields discarded, serialises to the very bytes that came holds known fields alone, in canonical
order; to read every field is all then. A span with something that JSON cannot say exactly goes the
slow way, and so does a request whose bytes are written otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from .. import exactjson
from .. import semconv as sc
from ..errors import InputError
from ..model import SCHEMA_VERSION
from .events import Record
from .foreign import (
    RECEIVED,
    RESOURCE_SPANS,
    SDK_VERSION,
    int_attribute,
    resource_record,
    resource_spans_record,
    scope_record,
    span_record,
    with_key,
)

_INFINITE = float("inf")
_MOST_CACHED = 256


class _Row(Struct, gc=False):
    """`model.Span`, its fields in the model's order."""

    id: str
    name: str
    parent_id: str | None
    index: None
    start_ns: int
    end_ns: int
    cpu_ns: None
    gpu_ns: None
    memory_peak_bytes: None
    thread_id: int | None
    pid: int | None
    rank: int
    attrs: dict[str, Any]
    mark_ids: tuple[str, ...]
    otel: dict[str, Any]


class _SlowError(Exception):
    """Something that a readable view does not say exactly."""


_encode = msgspec.json.Encoder().encode


class ForeignText:
    """A batch in the making, of one request after the other."""

    def __init__(self) -> None:
        self._rows: list[Any] = []
        self._resources: list[Record] = []
        self._known: dict[bytes, Record] = {}
        """Records of resources and scopes, by their bytes: most requests bring the same."""
        self.spans = 0

    def add(self, data: bytes) -> int:
        """Add the spans of a serialised TracesData; returns their number.

        Raises InputError for what is none; then nothing was added.
        """
        try:
            message = TracesData.FromString(data)
        except DecodeError:
            raise InputError("no TracesData in protobuf") from None
        return self.add_message(message, data)

    def add_message(self, message: TracesData, data: bytes | None = None) -> int:
        """The same, parsed; `data` are the bytes it was parsed from. It may be changed."""
        before = len(self._rows)
        is_plain = _is_canonical(message, data)
        if not is_plain and data is not None:
            message = TracesData.FromString(data)  # its unknown fields again
        for each in message.resource_spans:
            self._resources.append(
                self._add(each) if is_plain else resource_spans_record(each, self._rows)
            )
        self.spans = len(self._rows)
        return len(self._rows) - before

    def text(self, batch_id: str, created_ns: int) -> bytes:
        """The batch; it is over by that."""
        otel: Record = {RESOURCE_SPANS: self._resources, RECEIVED: created_ns}
        head = b'{"schema_version":%d,"sdk_version":"%b","batch_id":"%b","created_ns":%d,"spans":'
        return b"".join(
            (
                head % (SCHEMA_VERSION, SDK_VERSION.encode(), batch_id.encode(), created_ns),
                _text(self._rows),
                b',"marks":[],"snapshots":[],"otel":',
                _text(otel),
                b"}",
            )
        )

    def _add(self, message: ResourceSpans) -> Record:
        resource = message.resource
        record = dict(self._resource(message))
        pid = int_attribute(resource.attributes, sc.PROCESS_PID)
        rank = int_attribute(resource.attributes, sc.RANK) or 0
        scopes: list[Record] = []
        for each in message.scope_spans:
            scope = dict(self._scope(each))
            count = _add_rows(each.spans, resource, pid, rank, self._rows)
            scopes.append(with_key(scope, "spans", count))
        return with_key(record, "scope_spans", scopes)

    def _resource(self, message: ResourceSpans) -> Record:
        bare = ResourceSpans(schema_url=message.schema_url)
        if message.HasField("resource"):
            bare.resource.CopyFrom(message.resource)
        return self._cached(b"r" + bare.SerializeToString(), lambda: resource_record(bare))

    def _scope(self, message: ScopeSpans) -> Record:
        bare = ScopeSpans(schema_url=message.schema_url)
        if message.HasField("scope"):
            bare.scope.CopyFrom(message.scope)
        return self._cached(b"s" + bare.SerializeToString(), lambda: scope_record(bare))

    def _cached(self, key: bytes, make: Any) -> Record:
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_CACHED:
                self._known.clear()
            found = self._known[key] = make()
        return found


def _is_canonical(message: TracesData, data: bytes | None) -> bool:
    if data is None:
        return False
    message.DiscardUnknownFields()
    return bool(message.SerializeToString() == data)


def _text(value: Any) -> bytes:
    try:
        return _encode(value)
    except Exception:
        return exactjson.dumps([_told(row) for row in value] if isinstance(value, list) else value)


def _told(row: Any) -> Any:
    if isinstance(row, _Row):
        return {name: getattr(row, name) for name in row.__struct_fields__} | {"mark_ids": []}
    return row


# --- spans --------------------------------------------------------------------------------------


def _add_rows(
    spans: Iterable[Span], resource: Resource, pid: int | None, rank: int, rows: list[Any]
) -> int:
    """The hot loop: each field of a message is read once."""
    put, before = rows.append, len(rows)
    last: bytes | None = None
    trace_hex = low = ""
    for span in spans:
        trace_id, span_id = span.trace_id, span.span_id
        if trace_id != last:
            if len(trace_id) != 16 or not any(trace_id):
                put(span_record(span, resource))
                continue
            last, trace_hex = trace_id, trace_id.hex()
            low = trace_hex[16:]
        parent = span.parent_span_id
        if len(span_id) != 8 or not any(span_id):
            put(span_record(span, resource))
            continue
        if parent and (len(parent) != 8 or not any(parent)):
            put(span_record(span, resource))
            continue
        try:
            otel: Record = {"trace_id": trace_hex}
            attrs = _attributes(span.attributes)
            if kind := span.kind:
                otel["kind"] = kind
            if span.HasField("status"):
                status = span.status
                told = otel["status"] = {}
                if code := status.code:
                    told["code"] = code
                if said := status.message:
                    told["message"] = said
            if flags := span.flags:
                otel["flags"] = flags
            if state := span.trace_state:
                otel["trace_state"] = state
            if dropped := span.dropped_attributes_count:
                otel["dropped_attributes_count"] = dropped
            if dropped := span.dropped_events_count:
                otel["dropped_events_count"] = dropped
            if dropped := span.dropped_links_count:
                otel["dropped_links_count"] = dropped
            if links := span.links:
                otel["links"] = [_link(link) for link in links]
            if events := span.events:
                otel["events"] = [_event(event) for event in events]
        except _SlowError:
            put(span_record(span, resource))
            continue
        thread = attrs.get(sc.THREAD_ID)
        put(
            _Row(
                span_id.hex() + low, span.name, parent.hex() + low if parent else None, None,
                span.start_time_unix_nano, span.end_time_unix_nano, None, None, None,
                thread if type(thread) is int else None, pid, rank, attrs, (), otel,
            )
        )  # fmt: skip
    return len(rows) - before


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


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Raises _SlowError where they are more than JSON says: bytes, NaN, a key twice."""
    attrs: dict[str, Any] = {}
    count = 0
    for pair in pairs:
        count += 1
        value = pair.value
        if text := value.string_value:
            attrs[pair.key] = text
            continue
        kind = value.WhichOneof("value")
        if kind == "string_value":
            attrs[pair.key] = ""
        elif kind == "int_value":
            attrs[pair.key] = value.int_value
        elif kind == "bool_value":
            attrs[pair.key] = value.bool_value
        elif kind == "double_value":
            number = value.double_value
            if not -_INFINITE < number < _INFINITE:
                raise _SlowError
            attrs[pair.key] = number
        elif kind == "array_value":
            attrs[pair.key] = [_element(item) for item in value.array_value.values]
        else:
            raise _SlowError
    if len(attrs) != count:
        raise _SlowError
    return attrs


def _element(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind not in ("string_value", "int_value", "bool_value", "double_value"):
        raise _SlowError
    found = getattr(value, kind)
    if kind == "double_value" and not -_INFINITE < found < _INFINITE:
        raise _SlowError
    return found
