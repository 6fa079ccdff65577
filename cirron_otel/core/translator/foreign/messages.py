"""Convert OTLP that was not created from Cirron to a Cirron batch, and restore it, without loss.

Cirron's fields contain a readable view of the messages; `otel` contains the content that has no
field. If the view does not restore a message exactly, the view also contains the encoded message
(`raw`, base64).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from .... import exactjson
from .... import semconv as sc
from ...._version import SDK_VERSION
from ....ids import derive_id, digest, uuid4_shaped
from ...records.schema import SCHEMA_VERSION
from ..events import Record
from ..typed import NotCanonicalError
from ..values import INT64_MAX, is_int
from . import otel_view
from .otel_view import (
    RAW,
    counted_attributes,
    is_same,
    of_type,
    raw_of,
    text_of,
    unhex,
    unraw,
    view_attributes,
    write_counted_attributes,
    write_plain,
)

RESOURCE_SPANS = "resource_spans"
COPY = "copy"
RECEIVED = "received_ns"
"""The key of the receiving time (Unix ns) in the `otel` of a batch that a receiver created."""
_M = TypeVar("_M", bound=Message)


def decode_foreign(messages: Sequence[ResourceSpans], copy: int = 0) -> Record:
    """Return the batch that contains `messages`; `copy` numbers equal batches of one input, from 0.

    Its `batch_id` is a hash of its content, including `copy`. Its `created_ns` is the latest end
    time of its spans.
    """
    spans: list[Record] = []
    resources = [resource_spans_record(message, spans) for message in messages]
    otel: Record = {RESOURCE_SPANS: resources}
    if copy:
        otel[COPY] = copy
    ends = [span["end_ns"] for span in spans]
    batch: Record = {
        "schema_version": SCHEMA_VERSION,
        "sdk_version": SDK_VERSION,
        "batch_id": "",
        "created_ns": min(max(ends, default=0), INT64_MAX),
        "spans": spans,
        "marks": [],
        "snapshots": [],
        "otel": otel,
    }
    batch["batch_id"] = _hash({"spans": spans, "otel": otel})
    return batch


def content_id(batch: Record) -> str:
    """Return the `batch_id` that decoding derives from the messages, without the copy number."""
    return _hash({"spans": batch["spans"], "otel": {RESOURCE_SPANS: batch["otel"][RESOURCE_SPANS]}})


def _hash(content: Record) -> str:
    return uuid4_shaped(digest("otlp", exactjson.dumps_sorted(content)))


def messages_of(batch: Record) -> list[ResourceSpans] | None:
    """Return the messages in a batch that seems to have been created from OTLP, else None.

    The caller must decode the messages and compare the result with the batch.
    """
    otel = batch.get("otel")
    resources = otel.get(RESOURCE_SPANS) if isinstance(otel, dict) else None
    spans = batch.get("spans")
    if not isinstance(resources, list) or not resources or not isinstance(spans, list):
        return None
    if not all(isinstance(span, dict) for span in spans):
        return None
    try:
        left = iter(spans)
        messages = [_write_resource_spans(record, left) for record in resources]
    except (NotCanonicalError, StopIteration, DecodeError):
        return None
    return messages if next(left, None) is None else None


def regular(messages: Sequence[ResourceSpans]) -> int:
    """Replace, in place, ids of spans and links that backends refuse; return the number of spans.

    A backend refuses a complete request if it contains an id that is zero or has a wrong length.
    An id of a wrong length becomes a digest of it, so that references to it stay. An id that is
    missing or zero identifies nothing: it becomes a digest of all messages and a number, so that
    no two spans get the same one, and the same messages always get the same ids.
    """
    ids = _DerivedIds(messages)
    changed = 0
    for span in (s for m in messages for scope in m.scope_spans for s in scope.spans):
        trace_id, parent = span.trace_id, span.parent_span_id
        replaced = _regular_ids(span, ids, is_alone=not parent)
        if parent and not any(parent):
            span.parent_span_id, replaced = b"", True
        elif parent and len(parent) != 8:
            span.parent_span_id, replaced = digest("span", trace_id, parent)[:8], True
        for link in span.links:
            replaced |= _regular_ids(link, ids, is_alone=True)
        changed += replaced
    return changed


class _DerivedIds:
    """Ids for spans without one, in the order of the messages."""

    def __init__(self, messages: Sequence[ResourceSpans]) -> None:
        self._messages = messages
        self._key = b""
        self._count = 0

    def next(self, kind: str) -> bytes:
        """Return an id that no other span gets."""
        self._count += 1
        return digest(kind, self.key(), self._count)

    def key(self) -> bytes:
        """Return a digest of the messages, computed when it is first needed."""
        if not self._key:
            encoded = (m.SerializeToString(deterministic=True) for m in self._messages)
            self._key = digest("messages", *encoded)
        return self._key


def _regular_ids(owner: Span | Span.Link, ids: _DerivedIds, *, is_alone: bool) -> bool:
    """Replace invalid ids; `is_alone`: the owner has no parent, so it may have its own trace."""
    trace_id, span_id = owner.trace_id, owner.span_id
    if _regular(span_id, trace_id) is not None:
        return False
    has_id = any(span_id)
    if not any(trace_id):
        own = is_alone and not has_id
        owner.trace_id = (ids.next("trace") if own else digest("trace", ids.key()))[:16]
    elif len(trace_id) != 16:
        owner.trace_id = digest("trace", trace_id)[:16]
    if not has_id:
        owner.span_id = ids.next("span")[:8]
    elif len(span_id) != 8:
        owner.span_id = digest("span", trace_id, span_id)[:8]
    return True


# --- resource and scope -------------------------------------------------------------------------


def _bare(message: _M, field: str) -> _M:
    """Copy `message` without its repeated `field`."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.ClearField(field)
    return copy


def resource_spans_record(message: ResourceSpans, spans: list[Record]) -> Record:
    """Return the record of a ResourceSpans; append the records of its spans to `spans`."""
    process = process_of(message.resource)
    scopes = [scope_spans_record(item, process, spans) for item in message.scope_spans]
    return with_key(resource_record(_bare(message, "scope_spans")), "scope_spans", scopes)


def with_key(record: Record, key: str, value: Any) -> Record:
    """Add a key to a record, ahead of its `raw` if it has one, and return the record."""
    raw = record.pop(RAW, None)
    record[key] = value
    if raw is not None:
        record[RAW] = raw
    return record


def resource_record(bare: ResourceSpans) -> Record:
    """Return the record of a ResourceSpans that contains no scopes."""
    record: Record = {}
    if bare.HasField("resource"):
        record["resource"] = counted_attributes(bare.resource)
    if bare.schema_url:
        record["schema_url"] = bare.schema_url
    if not is_same(write_resource(record), bare):
        record[RAW] = raw_of(bare)
    return record


def write_resource(record: Record) -> ResourceSpans:
    """Restore the message of a record from `resource_record`.

    Raises NotCanonicalError or DecodeError if the record is not valid.
    """
    message = ResourceSpans()
    if RAW in record:
        return unraw(ResourceSpans, record[RAW])
    if "resource" in record:
        message.resource.SetInParent()
        write_counted_attributes(message.resource, of_type(record["resource"], dict))
    _write_schema_url(message, record)
    return message


def _write_schema_url(message: Any, record: Record) -> None:
    if "schema_url" in record:
        message.schema_url = text_of(record["schema_url"])


def scope_spans_record(message: ScopeSpans, process: Process, spans: list[Record]) -> Record:
    """Return the record of a ScopeSpans; append the records of its spans to `spans`."""
    spans.extend(span_record(span, process) for span in message.spans)
    return with_key(scope_record(_bare(message, "spans")), "spans", len(message.spans))


def scope_record(bare: ScopeSpans) -> Record:
    """Return the record of a ScopeSpans that contains no spans."""
    record: Record = {}
    if bare.HasField("scope"):
        scope = bare.scope
        names = {"name": scope.name, "version": scope.version}
        record["scope"] = {k: v for k, v in names.items() if v} | counted_attributes(scope)
    if bare.schema_url:
        record["schema_url"] = bare.schema_url
    if not is_same(write_scope(record), bare):
        record[RAW] = raw_of(bare)
    return record


def write_scope(record: Record) -> ScopeSpans:
    """Restore the message of a record from `scope_record`.

    Raises NotCanonicalError or DecodeError if the record is not valid.
    """
    message = ScopeSpans()
    if RAW in record:
        return unraw(ScopeSpans, record[RAW])
    if "scope" in record:
        scope = of_type(record["scope"], dict)
        message.scope.SetInParent()
        message.scope.name = text_of(scope.get("name", ""))
        message.scope.version = text_of(scope.get("version", ""))
        write_counted_attributes(message.scope, scope)
    _write_schema_url(message, record)
    return message


def _write_resource_spans(record: object, spans: Any) -> ResourceSpans:
    stated = of_type(record, dict)
    message = write_resource(stated)
    for item in of_type(stated.get("scope_spans"), list):
        scope_spans = write_scope(of_type(item, dict))
        for _ in range(of_type(item.get("spans"), int)):
            scope_spans.spans.append(_write_span(next(spans)))
        message.scope_spans.append(scope_spans)
    return message


# --- spans --------------------------------------------------------------------------------------


class Process(NamedTuple):
    """The process that a resource describes."""

    pid: int | None
    rank: int


def process_of(resource: Resource) -> Process:
    """Read the process of a resource.

    Call this once per resource, since a resource may have thousands of attributes.
    """
    rank = int_attribute(resource.attributes, sc.RANK)
    return Process(int_attribute(resource.attributes, sc.PROCESS_PID), rank or 0)


def span_record(span: Span, process: Process) -> Record:
    """Return the record of a span. The record restores the span exactly, whatever it contains."""
    record = _view(span, process)
    try:
        exact = is_same(_write_span(record), span)
    except NotCanonicalError:
        exact = False
    if not exact:
        record["otel"][RAW] = raw_of(span)
    return record


def _view(span: Span, process: Process) -> Record:
    otel: Record = {"trace_id": span.trace_id.hex()}
    record_id = _regular(span.span_id, span.trace_id)
    if record_id is None:
        otel["span_id"] = span.span_id.hex()
        record_id = (digest("span", span.trace_id, span.span_id)[:16]).hex()
    parent_id = None
    if span.parent_span_id:
        parent_id = _regular(span.parent_span_id, span.trace_id)
        if parent_id is None:
            otel["parent_span_id"] = span.parent_span_id.hex()
            parent_id = (digest("span", span.trace_id, span.parent_span_id)[:16]).hex()
    otel |= otel_view.read(span, 0, view_attributes)
    if span.events:
        otel["events"] = [_event(event) for event in span.events]
    thread_id = int_attribute(span.attributes, sc.THREAD_ID)
    return {
        "id": record_id,
        "name": span.name,
        "parent_id": parent_id,
        "index": None,
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        **dict.fromkeys(name for _, name in sc.COSTS),
        "thread_id": thread_id,
        "pid": process.pid,
        "rank": process.rank,
        "attrs": view_attributes(span.attributes),
        "mark_ids": [],
        "otel": otel,
    }


def _regular(span_id: bytes, trace_id: bytes) -> str | None:
    """Derive the Cirron id of a span; None if an id is zero or has a wrong length."""
    if len(span_id) != 8 or len(trace_id) != 16 or not any(span_id) or not any(trace_id):
        return None
    return derive_id(span_id, trace_id)


def int_attribute(pairs: Iterable[KeyValue], key: str) -> int | None:
    """Return the value of the attribute `key` if it is an integer, else None."""
    for pair in pairs:
        if pair.key == key and pair.value.WhichOneof("value") == "int_value":
            return pair.value.int_value
    return None


def _event(event: Span.Event) -> Record:
    record: Record = {"name": event.name, "time_ns": event.time_unix_nano}
    if event.attributes:
        record["attributes"] = view_attributes(event.attributes)
    if event.dropped_attributes_count:
        record["dropped_attributes_count"] = event.dropped_attributes_count
    return record


def _write_span(record: Record) -> Span:
    otel = of_type(record.get("otel"), dict)
    if RAW in otel:
        return unraw(Span, otel[RAW])
    span = Span()
    span.trace_id = _bytes(otel.get("trace_id"))
    span.span_id = _span_id(otel.get("span_id"), record.get("id"))
    if record.get("parent_id") is not None:
        span.parent_span_id = _span_id(otel.get("parent_span_id"), record.get("parent_id"))
    span.name = text_of(record.get("name"))
    for target, source in (("start_time_unix_nano", "start_ns"), ("end_time_unix_nano", "end_ns")):
        if not is_int(record.get(source), 0, 2**64 - 1):
            raise NotCanonicalError
        setattr(span, target, record[source])
    otel_view.write(span, otel, 0)
    write_plain(span.attributes, of_type(record.get("attrs"), dict))
    for event in of_type(otel.get("events", []), list):
        _write_event(span.events.add(), of_type(event, dict))
    return span


def _bytes(value: object) -> bytes:
    data = unhex(value)
    if data is None:
        raise NotCanonicalError
    return data


def _span_id(view: object, record_id: object) -> bytes:
    return _bytes(of_type(record_id, str)[:16] if view is None else view)


def _write_event(event: Span.Event, view: Record) -> None:
    event.name = text_of(view.get("name"))
    if not is_int(view.get("time_ns"), 0, 2**64 - 1):
        raise NotCanonicalError
    event.time_unix_nano = view["time_ns"]
    write_counted_attributes(event, view)
