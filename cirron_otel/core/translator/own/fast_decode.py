"""OTLP → Cirron on the fast path: translate the bytes of one complete batch into JSON.

This module accepts only bytes in the order and form that our encoder writes, so a batch that it
accepts needs no further check. Anything else (another order, an unknown field, a part of a batch, a
value in a residual) raises NotCanonicalError, and the batch goes to the exact path in `decode`.
"""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from .... import exactjson
from .. import residual as residuals
from ..header import Header, Origin, read_resource, read_scope
from ..typed import NotCanonicalError, encode
from .batch_fields import decoded_fields
from .decode import assembly_key
from .fast_spans import SpanReader
from .fast_wire import UNREADABLE, SuspectError, field_at

_CACHED, _LONGEST_CACHED = 1024, 16_384
"""The maximum number of cached resources, and the maximum size of each in bytes: 16 MiB in all."""


class DecodedBatch(NamedTuple):
    """A batch that is complete in one message."""

    name: str
    data: bytes
    """The batch as JSON."""
    key: bytes
    """The key that parts of this batch would have (`assembly_key`)."""
    spans: int
    marks: int
    snapshots: int


def fast_decode(data: bytes) -> DecodedBatch:
    """Decode a TracesData that contains exactly one complete batch.

    Raises NotCanonicalError for anything else.
    """
    try:
        return _decode(data)
    except UNREADABLE:
        raise NotCanonicalError from None


def _decode(data: bytes) -> DecodedBatch:
    start, end = field_at(data, 0, 0x0A)
    resource_start, resource_end = field_at(data, start, 0x0A)
    spans_start, spans_end = field_at(data, resource_end, 0x12)
    if end != len(data) or spans_end != end:
        raise NotCanonicalError
    scope_start, scope_end = field_at(data, spans_start, 0x0A)
    scope = InstrumentationScope.FromString(data[scope_start:scope_end])
    header = read_scope(scope)
    if header is None:
        raise NotCanonicalError
    origin = _origin(data[resource_start:resource_end], header)
    if origin is None or header.schema_version != 1:
        raise NotCanonicalError
    created_ns = header.created_ns
    if not isinstance(header.batch_id, str) or not isinstance(created_ns, int) or created_ns < 0:
        raise NotCanonicalError
    try:
        read = _read(SpanReader(data, header, origin), scope_end, spans_end)
    except SuspectError:
        read = _read(SpanReader(data, header, origin, careful=True), scope_end, spans_end)
    spans, marks, snapshots = read.texts
    name = header.file or f"{created_ns:020d}-{header.batch_id}.json"
    pieces = (
        b'{"schema_version":1,"sdk_version":', encode(header.sdk_version),
        b',"batch_id":', encode(header.batch_id), b',"created_ns":', encode(created_ns),
        b',"spans":[', spans, b'],"marks":[', marks, b'],"snapshots":[', snapshots, b"]",
        _otel(header, origin, read.residual or header.residual), b"}",
    )  # fmt: skip
    counts = header.counts
    key = assembly_key(header, origin)
    return DecodedBatch(name, b"".join(pieces), key, counts.spans, counts.marks, counts.snapshots)


class _Records(NamedTuple):
    """The records of a batch."""

    texts: list[bytes]
    """The JSON of the spans, marks and snapshots, without brackets."""
    residual: str | None
    """The header's residual, if a separate span carries it."""


def _read(reader: SpanReader, at: int, end: int) -> _Records:
    reader.read(at, end)
    reader.check_ids()
    events, counts = reader.events, reader.header.counts
    records = (reader.spans, events.marks, events.snapshots)
    expected = (counts.spans, counts.marks, counts.snapshots, counts.synthetic)
    if (*map(len, records), len(reader.synthetic)) != expected:
        raise NotCanonicalError
    return _Records([each.joined().encode("latin-1") for each in records], reader.residual)


def _otel(header: Header, origin: Origin, text: str) -> bytes:
    """Return the `otel` of the batch as a member of its JSON; b"" if the batch has no `otel`."""
    fields = decoded_fields(header, origin.attributes)
    residual = residuals.parse(text, of_batch=True)
    inner = residual.get(residuals.NESTED, {})
    touched = {*inner.get("set", {}), *inner.get("missing", ())}
    if residual.keys() - {residuals.NESTED} or "resource" in touched:
        raise NotCanonicalError
    residuals.apply(fields, residual)
    if "otel" not in fields:
        return b""
    otel = fields["otel"]
    try:
        otel_json = encode(otel)
    except (TypeError, UnicodeError, OverflowError):
        otel_json = exactjson.dumps(otel)
    if not exactjson.equal(exactjson.loads(otel_json), otel):
        otel_json = exactjson.dumps(otel)
    return b',"otel":' + otel_json


_origins: dict[tuple[bytes, str | None], Origin | None] = {}


def _origin(resource: bytes, header: Header) -> Origin | None:
    """Decode a resource. A process sends the same resource with every batch, so it is cached."""
    key = (resource, header.added_service_name)
    if key in _origins:
        return _origins[key]
    origin = read_resource(Resource.FromString(resource), header)
    if len(resource) + len(header.added_service_name or "") <= _LONGEST_CACHED:
        if len(_origins) >= _CACHED:
            _origins.clear()
        _origins[key] = origin
    return origin
