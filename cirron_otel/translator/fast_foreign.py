"""OTLP of any service to the text of a batch: the fast way of `foreign.decode_foreign`.

The proof that nothing is lost is that of light_spans: what is in canonical form holds nothing but
the fields that are read here. A span with something that JSON cannot say exactly goes the slow way,
and so does what is written otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct
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
    scope_spans_record,
    span_record,
    with_key,
)
from .light_spans import SlowError, Values, attributes_of, is_canonical, read_light

_MOST_KNOWN = 256
_ZERO = bytes(8)


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


_encode = msgspec.json.Encoder().encode


class ForeignText:
    """A batch in the making, of one request after the other."""

    def __init__(self) -> None:
        self._rows: list[Any] = []
        self._resources: list[Record] = []
        self._known: dict[tuple[str, bytes, bytes | None], Any] = {}
        """Records of resources and scopes, by their bytes: most requests bring the same."""
        self._values = Values()
        self.spans = 0

    def add(self, data: bytes) -> int:
        """Add the spans of a serialised TracesData; returns their number.

        Raises InputError for what is none; then nothing was added.
        """
        rows, resources = len(self._rows), len(self._resources)
        try:
            light, has_more = read_light(data)
            for each in light.resource_spans if light is not None else ():
                self._resources.append(self._add(each, has_more))
        except (DecodeError, UnicodeDecodeError):
            light = None
            del self._rows[rows:], self._resources[resources:]
        if light is None:
            self._add_slowly(data)
        self.spans = len(self._rows)
        return self.spans - rows

    def _add_slowly(self, data: bytes) -> None:
        try:
            message = TracesData.FromString(data)
        except DecodeError:
            raise InputError("no TracesData in protobuf") from None
        for each in message.resource_spans:
            self._resources.append(resource_spans_record(each, self._rows))

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

    def _add(self, light: Any, has_more: bool) -> Record:
        """The record of a ResourceSpans, and the rows of its spans."""
        known = self._resource(light)
        if known is None:
            message = ResourceSpans.FromString(light.SerializeToString())
            return resource_spans_record(message, self._rows)
        scopes: list[Record] = []
        for each in light.scope_spans:
            scope = self._scope(each)
            if scope is None:
                scopes.append(self._scope_slowly(each, known.resource))
                continue
            count = _add_rows(each.spans, known, has_more, self._values, self._rows)
            scopes.append(with_key(dict(scope), "spans", count))
        return with_key(dict(known.record), "scope_spans", scopes)

    def _scope_slowly(self, light: Any, resource: Resource) -> Record:
        message = ScopeSpans.FromString(light.SerializeToString())
        return scope_spans_record(message, resource, self._rows)

    def _resource(self, light: Any) -> _Known | None:
        found: _Known | None = self._remembered(light, "resource", ResourceSpans, _known)
        return found

    def _scope(self, light: Any) -> Record | None:
        found: Record | None = self._remembered(light, "scope", ScopeSpans, scope_record)
        return found

    def _remembered(self, light: Any, field: str, kind: Any, make: Callable[[Any], Any]) -> Any:
        """What `make` gives of the `field` of `light` and its schema_url, in a message of a `kind`.

        None where it is not in canonical form.
        """
        data = getattr(light, field) if light.HasField(field) else None
        key = field, light.schema_url, data
        if key not in self._known:
            bare = kind(schema_url=light.schema_url.decode())
            is_plain = True
            if data is not None:
                inner = getattr(bare, field)
                inner.SetInParent()
                inner.ParseFromString(data)
                is_plain = is_canonical(inner, data)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = make(bare) if is_plain else None
        return self._known[key]


class _Known(NamedTuple):
    """A resource that came before."""

    record: Record
    resource: Resource
    pid: int | None
    rank: int


def _known(bare: ResourceSpans) -> _Known:
    pairs = bare.resource.attributes
    pid, rank = int_attribute(pairs, sc.PROCESS_PID), int_attribute(pairs, sc.RANK)
    return _Known(resource_record(bare), bare.resource, pid, rank or 0)


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
    spans: Iterable[Any], known: _Known, has_more: bool, values: Values, rows: list[Any]
) -> int:
    """The hot loop: each field of a span is read once."""
    read, read_status, put, before = values.attributes, values.status, rows.append, len(rows)
    pid, rank = known.pid, known.rank
    last: bytes | None = None
    trace_hex = low = ""
    for span in spans:
        trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
        try:
            if trace_id != last:
                if len(trace_id) != 16 or not any(trace_id):
                    raise SlowError
                last, trace_hex = trace_id, trace_id.hex()
                low = trace_hex[16:]
            if len(span_id) != 8 or span_id == _ZERO:
                raise SlowError
            if parent and (len(parent) != 8 or parent == _ZERO):
                raise SlowError
            attrs = read(span.attributes[:])
            otel: Record = {"trace_id": trace_hex}
            if kind := span.kind:
                otel["kind"] = kind
            if span.HasField("status"):
                otel["status"] = read_status(span.status)
            if flags := span.flags:
                otel["flags"] = flags
            if has_more:
                _add_more(span, otel)
        except SlowError:
            put(span_record(Span.FromString(span.SerializeToString()), known.resource))
            continue
        thread = attrs.get(sc.THREAD_ID)
        put(
            _Row(
                span_id.hex() + low, span.name.decode(), parent.hex() + low if parent else None,
                None, span.start_time_unix_nano, span.end_time_unix_nano, None, None, None,
                thread if type(thread) is int else None, pid, rank, attrs, (), otel,
            )
        )  # fmt: skip
    return len(rows) - before


def _add_more(span: Any, otel: Record) -> None:
    """What most spans have not."""
    if state := span.trace_state:
        otel["trace_state"] = state.decode()
    if dropped := span.dropped_attributes_count:
        otel["dropped_attributes_count"] = dropped
    if dropped := span.dropped_events_count:
        otel["dropped_events_count"] = dropped
    if dropped := span.dropped_links_count:
        otel["dropped_links_count"] = dropped
    if links := span.links[:]:
        otel["links"] = [_link(_read(Span.Link, link)) for link in links]
    if events := span.events[:]:
        otel["events"] = [_event(_read(Span.Event, event)) for event in events]


def _read(kind: Any, data: bytes) -> Any:
    message = kind.FromString(data)
    if not is_canonical(message, data):
        raise SlowError
    return message


def _link(link: Span.Link) -> Record:
    record: Record = {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}
    if state := link.trace_state:
        record["trace_state"] = state
    if flags := link.flags:
        record["flags"] = flags
    if dropped := link.dropped_attributes_count:
        record["dropped_attributes_count"] = dropped
    if attributes := link.attributes:
        record["attributes"] = attributes_of(attributes)
    return record


def _event(event: Span.Event) -> Record:
    record: Record = {"name": event.name, "time_ns": event.time_unix_nano}
    if attributes := event.attributes:
        record["attributes"] = attributes_of(attributes)
    if dropped := event.dropped_attributes_count:
        record["dropped_attributes_count"] = dropped
    return record
