"""Decode OTLP from any service to a batch's JSON text: the fast path of `messages.decode_foreign`.

Nothing is lost: `json_text_cache.read_light` parses a request, and `span_json` its spans. A span
with unusual content takes the generic path, and so does a request that is not in canonical form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, TracesData

from .... import exactjson
from ...._version import SDK_VERSION
from ....errors import InputError
from ...records.schema import SCHEMA_VERSION
from ..events import Record
from ..json_text_cache import is_canonical, read_light
from ..pieces import varint
from .messages import (
    RECEIVED,
    RESOURCE_SPANS,
    Process,
    process_of,
    resource_record,
    resource_spans_record,
    scope_record,
    span_record,
    with_key,
)
from .span_json import Texts, add_rows

_MOST_KNOWN = 128
_LARGEST_KNOWN = 4096
"""The maximum number of cached resources and scopes, and the maximum size of each in bytes.

The cached objects may use twenty times as much memory.
"""
_RESOURCE, _SCOPE, _SPAN = b"\x0a\x0a", b"\x0a\x12\x0a", b"\x12\x12\x0a"
"""The tags of the fields around a resource, a scope and a span in a TracesData, innermost first."""
_encode = msgspec.json.Encoder().encode


class Known(Texts):
    """Caches content of recent spans for later batches of the same thread.

    Its size is bounded for any input: at most 10 MiB of resources and scopes, in addition to the
    size of `Texts`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bare: dict[tuple[str, bytes, bytes | None], Any] = {}
        """The records of resources and scopes, by their bytes; most requests contain the same ones.
        """


class _OtherwiseError(Exception):
    """A resource or a scope is not in canonical form."""


class ForeignText:
    """A batch under construction, to which requests are added one by one."""

    def __init__(self, known: Known | None = None) -> None:
        self._rows: list[bytes] = []
        """The rows of each request, separated by commas."""
        self._resources: list[Record] = []
        self._known = known or Known()
        self.spans = 0

    def add(self, data: bytes) -> int:
        """Add the spans of a serialised TracesData; return their number.

        Raises InputError if the data is not valid; nothing is added in that case.
        """
        rows: list[str] = []
        try:
            traces_data = read_light(data)
            resources = (
                None
                if traces_data is None
                else [self._add(each, rows) for each in traces_data.resource_spans]
            )
        except (DecodeError, UnicodeDecodeError, _OtherwiseError):
            resources = None
        if resources is None:
            rows.clear()
            resources = _add_slowly(data, rows)
        if rows:
            self._rows.append(",".join(rows).encode("latin-1"))
        self._resources += resources
        self.spans += len(rows)
        return len(rows)

    def text(self, batch_id: str, created_ns: int) -> bytes:
        """Return the text of the batch. Nothing can be added to the batch afterwards."""
        otel: Record = {RESOURCE_SPANS: self._resources, RECEIVED: created_ns}
        head = b'{"schema_version":%d,"sdk_version":"%b","batch_id":"%b","created_ns":%d,"spans":['
        return b"".join(
            (
                head % (SCHEMA_VERSION, SDK_VERSION.encode(), batch_id.encode(), created_ns),
                b",".join(self._rows),
                b'],"marks":[],"snapshots":[],"otel":',
                _text(otel),
                b"}",
            )
        )

    def _add(self, light: Any, rows: list[str]) -> Record:
        """Return the record of a ResourceSpans; append the rows of its spans."""
        resource = self._resource(light)
        scopes: list[Record] = []
        for each in light.scope_spans:
            spans = each.spans[:]
            add_rows(spans, resource.fixed, self._known, resource.row, rows)
            scopes.append(with_key(dict(self._scope(each)), "spans", len(spans)))
        return with_key(dict(resource.record), "scope_spans", scopes)

    def _resource(self, light: Any) -> _Resource:
        def read(data: bytes) -> Resource:
            return _within(data, _RESOURCE).resource

        resource: _Resource = self._remembered(light, "resource", read, ResourceSpans, _resource_of)
        return resource

    def _scope(self, light: Any) -> Record:
        def read(data: bytes) -> InstrumentationScope:
            return _within(data, _SCOPE).scope_spans[0].scope

        scope: Record = self._remembered(light, "scope", read, ScopeSpans, scope_record)
        return scope

    def _remembered(
        self,
        light: Any,
        field: str,
        read: Callable[[bytes], Any],
        kind: Any,
        make: Callable[[Any], Any],
    ) -> Any:
        """Return the record of a resource or a scope, from the cache if possible.

        To build it, this passes `make` a message of the class `kind` that contains only the `field`
        and the `schema_url` of `light`. `read` parses the bytes of `field`. Raises DecodeError, and
        _OtherwiseError if the field is not in canonical form.
        """
        data = getattr(light, field) if light.HasField(field) else None
        key = field, light.schema_url, data
        cache = self._known.bare
        if key in cache:
            return cache[key]
        message = kind(schema_url=light.schema_url.decode())
        if data is not None:
            inner = read(data)
            if not is_canonical(inner, data):
                raise _OtherwiseError
            getattr(message, field).SetInParent()
            getattr(message, field).MergeFrom(inner)
        result = make(message)
        if len(light.schema_url) + len(data or b"") <= _LARGEST_KNOWN:
            if len(cache) >= _MOST_KNOWN:
                cache.clear()
            cache[key] = result
        return result


class _Resource(NamedTuple):
    """Values derived from a resource."""

    record: Record
    process: Process
    fixed: str
    """The text between `thread_id` and `attrs` in the rows of its spans."""

    def row(self, data: bytes) -> str:
        """Translate a serialised span to its row on the generic path. Raises DecodeError."""
        span = _within(data, _SPAN).scope_spans[0].spans[0]
        return _row(span_record(span, self.process))


def _resource_of(bare: ResourceSpans) -> _Resource:
    process = process_of(bare.resource)
    pid = "null" if process.pid is None else process.pid
    fixed = f',"pid":{pid},"rank":{process.rank},"attrs":{{'
    return _Resource(resource_record(bare), process, fixed)


def _within(data: bytes, tags: bytes) -> ResourceSpans:
    """Parse `data` inside the fields with these tags, innermost first; return the ResourceSpans.

    If `data` were parsed alone, it could be nested deeper than protobuf allows in a TracesData.
    Raises DecodeError.
    """
    for tag in tags:
        data = bytes((tag,)) + varint(len(data)) + data
    return TracesData.FromString(data).resource_spans[0]


def _row(record: Record) -> str:
    return _text(record).decode("latin-1")


def _text(value: Any) -> bytes:
    try:
        return _encode(value)
    except Exception:
        return exactjson.dumps(value)


# --- the generic path ---------------------------------------------------------------------------


def _add_slowly(data: bytes, rows: list[str]) -> list[Record]:
    try:
        message = TracesData.FromString(data)
    except DecodeError:
        raise InputError("not a protobuf TracesData message") from None
    return [_resource_slowly(each, rows) for each in message.resource_spans]


def _resource_slowly(message: ResourceSpans, rows: list[str]) -> Record:
    records: list[Record] = []
    record = resource_spans_record(message, records)
    rows.extend(map(_row, records))
    return record
