"""OTLP of any service to the text of a batch: the fast way of `foreign.decode_foreign`.

The proof that nothing is lost is that of light_spans: what is in canonical form holds nothing but
the fields that are read here. A span with something that JSON cannot say exactly goes the slow way,
and so does what is written otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
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
from .light_rows import Texts, add_rows
from .light_spans import is_canonical, read_light

_MOST_KNOWN = 256
_LARGEST_KNOWN = 16_384
"""Of resources and scopes, and bytes of each."""
_encode = msgspec.json.Encoder().encode


class Known(Texts):
    """What is known of the last spans, for the next batch: no more than a few MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.bare: dict[tuple[str, bytes, bytes | None], Any] = {}
        """Records of resources and scopes, by their bytes: most requests bring the same."""


class ForeignText:
    """A batch in the making, of one request after the other."""

    def __init__(self, known: Known | None = None) -> None:
        self._rows: list[bytes] = []
        """The rows of a request each, a comma between them."""
        self._resources: list[Record] = []
        self._known = known or Known()
        self.spans = 0

    def add(self, data: bytes) -> int:
        """Add the spans of a serialised TracesData; returns their number.

        Raises InputError for what is none; then nothing was added.
        """
        rows: list[str] = []
        try:
            light = read_light(data)
            resources = (
                None if light is None else [self._add(each, rows) for each in light.resource_spans]
            )
        except (DecodeError, UnicodeDecodeError):
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
        """The batch; it is over by that."""
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
        """The record of a ResourceSpans, and the rows of its spans."""
        known = self._resource(light)
        if known is None:
            return _resource_slowly(ResourceSpans.FromString(light.SerializeToString()), rows)
        scopes: list[Record] = []
        for each in light.scope_spans:
            scope = self._scope(each)
            if scope is None:
                scopes.append(_scope_slowly(each, known.resource, rows))
                continue
            spans = each.spans[:]
            add_rows(spans, known.fixed, self._known, known.row, rows)
            scopes.append(with_key(dict(scope), "spans", len(spans)))
        return with_key(dict(known.record), "scope_spans", scopes)

    def _resource(self, light: Any) -> _Resource | None:
        found: _Resource | None = self._remembered(light, "resource", ResourceSpans, _known)
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
        known = self._known.bare
        if key in known:
            return known[key]
        bare = kind(schema_url=light.schema_url.decode())
        is_plain = True
        if data is not None:
            inner = getattr(bare, field)
            inner.SetInParent()
            inner.ParseFromString(data)
            is_plain = is_canonical(inner, data)
        made = make(bare) if is_plain else None
        if len(light.schema_url) + len(data or b"") <= _LARGEST_KNOWN:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key] = made
        return made


class _Resource(NamedTuple):
    """A resource that came before."""

    record: Record
    resource: Resource
    fixed: str
    """What the rows of its spans have between `thread_id` and `attrs`."""

    def row(self, data: bytes) -> str:
        """Of a serialised span, the slow way. Raises DecodeError."""
        return _row(span_record(Span.FromString(data), self.resource))


def _known(bare: ResourceSpans) -> _Resource:
    pairs = bare.resource.attributes
    pid, rank = int_attribute(pairs, sc.PROCESS_PID), int_attribute(pairs, sc.RANK)
    fixed = f',"pid":{_json(pid)},"rank":{rank or 0},"attrs":{{'
    return _Resource(resource_record(bare), bare.resource, fixed)


def _row(record: Record) -> str:
    return _text(record).decode("latin-1")


def _text(value: Any) -> bytes:
    try:
        return _encode(value)
    except Exception:
        return exactjson.dumps(value)


# --- the slow way -------------------------------------------------------------------------------


def _add_slowly(data: bytes, rows: list[str]) -> list[Record]:
    try:
        message = TracesData.FromString(data)
    except DecodeError:
        raise InputError("no TracesData in protobuf") from None
    return [_resource_slowly(each, rows) for each in message.resource_spans]


def _resource_slowly(message: ResourceSpans, rows: list[str]) -> Record:
    records: list[Record] = []
    record = resource_spans_record(message, records)
    rows.extend(map(_row, records))
    return record


def _scope_slowly(light: Any, resource: Resource, rows: list[str]) -> Record:
    message = ScopeSpans.FromString(light.SerializeToString())
    records: list[Record] = []
    record = scope_spans_record(message, resource, records)
    rows.extend(map(_row, records))
    return record


def _json(number: int | None) -> str:
    return "null" if number is None else str(number)
