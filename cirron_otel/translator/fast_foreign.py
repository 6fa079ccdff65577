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
from .light_attributes import Pairs
from .light_spans import is_canonical, read_light
from .light_text import Ends, Names, SlowError, rare

_MOST_KNOWN = 256
_LARGEST_KNOWN = 16_384
"""Of resources and scopes, and bytes of each."""
_SKIPPED = 15
"""So many requests are taken to be like one whose spans had more than most."""
_ZERO = bytes(8)
_encode = msgspec.json.Encoder().encode


class Known:
    """What is known of the last spans, for the next batch: no more than a few MiB."""

    def __init__(self) -> None:
        self.pairs, self.names, self.ends = Pairs(), Names(), Ends()
        self.bare: dict[tuple[str, bytes, bytes | None], Any] = {}
        """Records of resources and scopes, by their bytes: most requests bring the same."""
        self._skipped = 0

    def read(self, data: bytes) -> tuple[Any, bool]:
        """As read_light does, which is not asked for plain spans where they were not of late."""
        if self._skipped:
            self._skipped -= 1
            return read_light(data, may_be_plain=False)
        light, has_more = read_light(data)
        if light is not None and has_more:
            self._skipped = _SKIPPED
        return light, has_more


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
        rows: list[bytes] = []
        try:
            light, has_more = self._known.read(data)
            resources = (
                None
                if light is None
                else [self._add(each, has_more, rows) for each in light.resource_spans]
            )
        except (DecodeError, UnicodeDecodeError):
            resources = None
        if resources is None:
            rows.clear()
            resources = _add_slowly(data, rows)
        if rows:
            self._rows.append(b",".join(rows))
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

    def _add(self, light: Any, has_more: bool, rows: list[bytes]) -> Record:
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
            count = _add_rows(each.spans, known, has_more, self._known, rows)
            scopes.append(with_key(dict(scope), "spans", count))
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
    pid: int | None
    rank: int


def _known(bare: ResourceSpans) -> _Resource:
    pairs = bare.resource.attributes
    pid, rank = int_attribute(pairs, sc.PROCESS_PID), int_attribute(pairs, sc.RANK)
    return _Resource(resource_record(bare), bare.resource, pid, rank or 0)


def _text(value: Any) -> bytes:
    try:
        return _encode(value)
    except Exception:
        return exactjson.dumps(value)


# --- the slow way -------------------------------------------------------------------------------


def _add_slowly(data: bytes, rows: list[bytes]) -> list[Record]:
    try:
        message = TracesData.FromString(data)
    except DecodeError:
        raise InputError("no TracesData in protobuf") from None
    return [_resource_slowly(each, rows) for each in message.resource_spans]


def _resource_slowly(message: ResourceSpans, rows: list[bytes]) -> Record:
    records: list[Record] = []
    record = resource_spans_record(message, records)
    rows.extend(map(_text, records))
    return record


def _scope_slowly(light: Any, resource: Resource, rows: list[bytes]) -> Record:
    message = ScopeSpans.FromString(light.SerializeToString())
    records: list[Record] = []
    record = scope_spans_record(message, resource, records)
    rows.extend(map(_text, records))
    return record


# --- spans --------------------------------------------------------------------------------------


def _add_rows(
    spans: Iterable[Any], known: _Resource, has_more: bool, texts: Known, rows: list[bytes]
) -> int:
    """The hot loop: each field of a span is read once, and becomes text at once."""
    member_of, names, ends = texts.pairs.__getitem__, texts.names, texts.ends
    put, before = rows.append, len(rows)
    fixed = f',"pid":{_json(known.pid)},"rank":{known.rank},"attrs":{{'
    last: bytes | None = None
    low = otel = ""
    for span in spans:
        trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
        try:
            if trace_id != last:
                if len(trace_id) != 16 or not any(trace_id):
                    raise SlowError
                last, trace_hex = trace_id, trace_id.hex()
                low = trace_hex[16:]
                otel = f'}},"mark_ids":[],"otel":{{"trace_id":"{trace_hex}"'
            if len(span_id) != 8 or span_id == _ZERO:
                raise SlowError
            if parent and (len(parent) != 8 or parent == _ZERO):
                raise SlowError
            attributes = span.attributes[:]
            members = dict(map(member_of, attributes))
            if len(members) != len(attributes):
                raise SlowError  # a key twice
            status = span.status
            if not status and not span.HasField("status"):
                status = None
            name, told = names[span.name], ends[span.kind, status, span.flags]
            if has_more:
                told += rare(span, member_of, names)
        except SlowError:
            record = span_record(Span.FromString(span.SerializeToString()), known.resource)
            put(_text(record))
            continue
        parent_id = f'"{parent.hex()}{low}"' if parent else "null"
        thread = _thread(members[sc.THREAD_ID]) if sc.THREAD_ID in members else "null"
        put(
            f'{{"id":"{span_id.hex()}{low}","name":{name},"parent_id":{parent_id}'
            f',"index":null,"start_ns":{span.start_time_unix_nano}'
            f',"end_ns":{span.end_time_unix_nano},"cpu_ns":null,"gpu_ns":null'
            f',"memory_peak_bytes":null,"thread_id":{thread}{fixed}{",".join(members.values())}'
            f"{otel}{told}}}}}".encode()
        )
    return len(rows) - before


def _thread(member: str) -> str:
    """The number that an attribute is, as text."""
    told = member.removeprefix(f'"{sc.THREAD_ID}":')
    return told if told.removeprefix("-").isdigit() else "null"


def _json(number: int | None) -> str:
    return "null" if number is None else str(number)
