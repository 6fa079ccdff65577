"""The parts of OTLP that concern spans, one by one, to check which of them a backend keeps.

Each piece is a trace with one span or two, and a function that extracts the piece from the returned
trace; docs/backends.md has a row for each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

Build = Callable[[ResourceSpans, ScopeSpans, Span], None]
Look = Callable[[TracesData], Any]
NOW = time.time_ns() - 60 * 10**9
UNKNOWN = b"\xc2\xb8\x02\x03new"
"""A field, number 5000, that OTLP does not have."""


@dataclass(frozen=True)
class Piece:
    """One part of OTLP."""

    name: str
    build: Build
    look: Look

    def made(self) -> TracesData:
        """Return a trace that contains the piece."""
        traces = TracesData()
        group = traces.resource_spans.add()
        group.resource.attributes.add(key="service.name").value.string_value = "kept"
        scoped = group.scope_spans.add()
        scoped.scope.name = "a scope"
        span = scoped.spans.add(
            trace_id=os.urandom(16),
            span_id=os.urandom(8),
            name="a span",
            kind=2,
            start_time_unix_nano=NOW,
            end_time_unix_nano=NOW + 1000,
        )
        self.build(group, scoped, span)
        return traces


def text(value: str) -> AnyValue:
    return AnyValue(string_value=value)


def listed(*values: AnyValue) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=values))


def attribute(*values: AnyValue) -> Build:
    def build(_: ResourceSpans, __: ScopeSpans, span: Span) -> None:
        for number, value in enumerate(values):
            span.attributes.append(KeyValue(key=f"k{number}", value=value))

    return build


def put(**fields: Any) -> Build:
    def build(_: ResourceSpans, __: ScopeSpans, span: Span) -> None:
        span.MergeFrom(Span(**fields))

    return build


def first(traces: TracesData) -> tuple[ResourceSpans, ScopeSpans, Span]:
    group = traces.resource_spans[0]
    return group, group.scope_spans[0], group.scope_spans[0].spans[0]


def field(*names: str) -> Look:
    return lambda traces: [getattr(first(traces)[2], name) for name in names]


def said(pairs: Sequence[KeyValue]) -> list[bytes]:
    """Return attributes in an order that does not depend on theirs."""
    return sorted(pair.SerializeToString(deterministic=True) for pair in pairs)


def attributes(traces: TracesData) -> Any:
    return said(first(traces)[2].attributes)


def events(*names: str) -> Look:
    def look(traces: TracesData) -> Any:
        return [[getattr(each, n) for n in names] for each in first(traces)[2].events]

    return look


def links(*names: str) -> Look:
    def look(traces: TracesData) -> Any:
        return [[getattr(each, n) for n in names] for each in first(traces)[2].links]

    return look


def spans(traces: TracesData) -> Any:
    return sorted(
        span.SerializeToString(deterministic=True)
        for group in traces.resource_spans
        for scoped in group.scope_spans
        for span in _bare(scoped)
    )


def _bare(scoped: ScopeSpans) -> list[Span]:
    """Return copies of the spans without an empty status, which is a piece of its own."""
    bare = [Span.FromString(span.SerializeToString()) for span in scoped.spans]
    for span in bare:
        if not span.status.ByteSize():
            span.ClearField("status")
    return bare


def _event(**fields: Any) -> Span:
    return Span(events=[Span.Event(**{"time_unix_nano": NOW + 5, "name": "an event", **fields})])


def _link(**fields: Any) -> Span:
    ids = {"trace_id": bytes(range(1, 17)), "span_id": bytes(range(1, 9))}
    return Span(links=[Span.Link(**{**ids, **fields})])


def merged(more: Span) -> Build:
    return lambda _, __, span: span.MergeFrom(more)


PAIR = [KeyValue(key="why", value=text("test"))]
LONG = [KeyValue(key="long", value=text("x" * 3000))]


def _twins(kinds: tuple[int, int]) -> Build:
    def build(_: ResourceSpans, scoped: ScopeSpans, span: Span) -> None:
        span.kind = kinds[0]  # type: ignore[assignment]
        other = scoped.spans.add()
        other.CopyFrom(span)
        other.kind = kinds[1]  # type: ignore[assignment]
        other.name = "another of the same id"

    return build


def _same_again(_: ResourceSpans, scoped: ScopeSpans, span: Span) -> None:
    scoped.spans.add().CopyFrom(span)


def _order(_: ResourceSpans, __: ScopeSpans, span: Span) -> None:
    for key in ("http.method", "c", "a", "http.url", "b"):
        span.attributes.add(key=key).value.string_value = "x"


def _service(value: AnyValue | None) -> Build:
    def build(group: ResourceSpans, _: ScopeSpans, __: Span) -> None:
        del group.resource.attributes[:]
        group.resource.attributes.add(key="other").value.int_value = 1
        if value is not None:
            group.resource.attributes.append(KeyValue(key="service.name", value=value))

    return build


def _resource(traces: TracesData) -> Any:
    return said(first(traces)[0].resource.attributes)


def _scope(traces: TracesData) -> Any:
    scope = first(traces)[1].scope
    return [scope.name, scope.version, said(scope.attributes)]


def _say_scope(_: ResourceSpans, scoped: ScopeSpans, __: Span) -> None:
    scoped.scope.version = "1"
    scoped.scope.attributes.extend(PAIR)


def _scopes(group: ResourceSpans, scoped: ScopeSpans, span: Span) -> None:
    scoped.scope.attributes.extend(PAIR)
    other = group.scope_spans.add(scope={"name": scoped.scope.name}, spans=[span])
    other.spans[0].span_id = os.urandom(8)


def _set(group: str = "", scoped: str = "") -> Build:
    def build(g: ResourceSpans, s: ScopeSpans, _: Span) -> None:
        g.schema_url, s.schema_url = group, scoped

    return build


def _dropped(g: ResourceSpans, s: ScopeSpans, _: Span) -> None:
    g.resource.dropped_attributes_count = 3
    s.scope.dropped_attributes_count = 4


def _long_around(g: ResourceSpans, s: ScopeSpans, _: Span) -> None:
    g.resource.attributes.extend(LONG)
    s.scope.attributes.extend(LONG)


def _no_resource(group: ResourceSpans, _: ScopeSpans, __: Span) -> None:
    group.ClearField("resource")


def _entity(group: ResourceSpans, _: ScopeSpans, __: Span) -> None:
    group.resource.entity_refs.add(type="service", id_keys=["service.name"])


def _unknown(group: ResourceSpans, _: ScopeSpans, span: Span) -> None:
    span.MergeFromString(UNKNOWN)


def _keys(*keys: str) -> Build:
    def build(_: ResourceSpans, __: ScopeSpans, span: Span) -> None:
        for number, key in enumerate(keys):
            span.attributes.add(key=key).value.int_value = number

    return build


_ENDS = field("start_time_unix_nano", "end_time_unix_nano")
NUMBERS = [AnyValue(int_value=-(2**63)), AnyValue(double_value=2.0), AnyValue(double_value=1e308)]
ODD = [AnyValue(double_value=float(each)) for each in ("nan", "inf", "-inf", "-0.0")]

PIECES = [
    Piece("names, with any letter", put(name="né\0me \U0001f600"), field("name")),
    Piece("an empty name", lambda _, __, s: s.ClearField("name"), field("name")),
    Piece("kind, including an unspecified one", lambda _, __, s: s.ClearField("kind"),
          field("kind")),
    Piece("times to the nanosecond", put(), _ENDS),
    Piece("a span that ends when it starts", put(end_time_unix_nano=NOW), _ENDS),
    Piece("a span that ends before it starts", put(end_time_unix_nano=NOW - 10**9), _ENDS),
    Piece("status and its message", merged(Span(status={"code": 2, "message": "no"})),
          lambda t: first(t)[2].status.SerializeToString()),
    Piece("whether an empty status was present", put(),
          lambda t: first(t)[2].HasField("status")),
    Piece("flags of a span", put(flags=0x301), field("flags")),
    Piece("trace state", put(trace_state="vendor=1,other=2"), field("trace_state")),
    Piece("dropped counts of a span", put(
        dropped_attributes_count=1, dropped_events_count=2, dropped_links_count=3),
        field("dropped_attributes_count", "dropped_events_count", "dropped_links_count")),
    Piece("attributes: text, booleans, integers, doubles",
          attribute(text("x"), text(""), AnyValue(bool_value=True), *NUMBERS), attributes),
    Piece("attributes: NaN, infinities, -0.0", attribute(*ODD), attributes),
    Piece("attributes: bytes", attribute(AnyValue(bytes_value=b"\0\xff")), attributes),
    Piece("attributes: lists of one type", attribute(
        listed(text("a"), text("b")), listed(*NUMBERS[1:])), attributes),
    Piece("attributes: lists of several types, and lists in lists", attribute(
        listed(text("a"), AnyValue(int_value=1), listed(text("b")))), attributes),
    Piece("attributes: an empty list", attribute(listed()), attributes),
    Piece("attributes: maps", attribute(
        AnyValue(kvlist_value=KeyValueList(values=PAIR))), attributes),
    Piece("attributes: an empty value", attribute(AnyValue()), attributes),
    Piece("attributes: an empty key", _keys(""), attributes),
    Piece("attributes: a repeated key", _keys("twice", "twice"), attributes),
    Piece("attributes: their order", _order,
          lambda t: [pair.key for pair in first(t)[2].attributes]),
    Piece("attributes: text above 2,048 bytes", put(attributes=LONG), attributes),
    Piece("events: name, time, order", merged(Span(events=[
        Span.Event(time_unix_nano=NOW + 9, name="b"), Span.Event(time_unix_nano=NOW + 1)])),
        events("name", "time_unix_nano")),
    Piece("events: before the span's start", merged(_event(time_unix_nano=NOW - 5)),
          events("time_unix_nano")),
    Piece("events: attributes", merged(_event(attributes=PAIR)), events("attributes")),
    Piece("events: text above 2,048 bytes", merged(_event(attributes=LONG)), events("attributes")),
    Piece("events: dropped counts", merged(_event(dropped_attributes_count=2)),
          events("dropped_attributes_count")),
    Piece("links: ids", merged(_link()), links("trace_id", "span_id")),
    Piece("links: attributes", merged(_link(attributes=PAIR)), links("attributes")),
    Piece("links: text above 2,048 bytes", merged(_link(attributes=LONG)), links("attributes")),
    Piece("links: trace state", merged(_link(trace_state="v=1")), links("trace_state")),
    Piece("links: flags", merged(_link(flags=1)), links("flags")),
    Piece("links: dropped counts", merged(_link(dropped_attributes_count=2)),
          links("dropped_attributes_count")),
    Piece("resource: attributes of simple types", _service(text("kept")), _resource),
    Piece("resource: without service.name", _service(None), _resource),
    Piece("resource: an empty service.name", _service(text("")), _resource),
    Piece("resource: a service.name that is not a string", _service(AnyValue(int_value=5)),
          _resource),
    Piece("no resource", _no_resource,
          lambda t: first(t)[0].resource.SerializeToString()),
    Piece("scope: name, version, attributes", _say_scope, _scope),
    Piece("scopes of one name and version: their attributes", _scopes, lambda t: sorted(
        (said(scoped.scope.attributes), len(scoped.spans))
        for group in t.resource_spans for scoped in group.scope_spans)),
    Piece("resource and scope: text above 2,048 bytes", _long_around,
          lambda t: (_resource(t), _scope(t))),
    Piece("resource and scope: dropped counts", _dropped, lambda t: (
        first(t)[0].resource.dropped_attributes_count,
        first(t)[1].scope.dropped_attributes_count)),
    Piece("schema URLs", _set("https://a", "https://b"),
          lambda t: (first(t)[0].schema_url, first(t)[1].schema_url)),
    Piece("entity references", _entity, lambda t: len(first(t)[0].resource.entity_refs)),
    Piece("unknown protobuf fields", _unknown, lambda t: UNKNOWN in t.SerializeToString()),
    Piece("two spans with one id, a client and a server", _twins((3, 2)), spans),
    Piece("two spans with one id, of the same kind", _twins((2, 2)), spans),
    Piece("the same span twice", _same_again, spans),
]  # fmt: skip
