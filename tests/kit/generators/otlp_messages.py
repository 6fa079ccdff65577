"""Hypothesis strategies for TracesData: every field, every AnyValue kind, odd and hostile."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    EntityRef,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import (
    ResourceSpans,
    ScopeSpans,
    Span,
    Status,
    TracesData,
)

texts = st.one_of(
    st.sampled_from(["", "\0", '"\\', "é", "\u2028", "\U0001f642", "NaN", "-0", "cirron.index"]),
    st.text(max_size=8),  # no lone surrogates: hypothesis leaves them out, protobuf refuses them
)
ids = st.one_of(st.binary(max_size=20), st.just(b""), st.just(bytes(8)))
fixed32 = st.one_of(st.just(0), st.integers(0, 2**32 - 1))
fixed64 = st.one_of(st.sampled_from([0, 2**53 + 1, 2**64 - 1]), st.integers(0, 2**64 - 1))
int32 = st.one_of(st.just(0), st.integers(-(2**31), 2**31 - 1))
int64 = st.one_of(st.sampled_from([0, -(2**63), 2**63 - 1]), st.integers(-(2**63), 2**63 - 1))
doubles = st.one_of(
    st.sampled_from([0.0, -0.0, 5e-324, 1e22, 1e16, 0.1, float("nan"), float("inf")]),
    st.floats(allow_nan=False),
)
odd_nans = st.sampled_from([0x7FF8000000000001, 0xFFF8000000000000]).map(
    lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]
)


def messages(of: type[Message], /, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages of type `of`, each of the fields present or absent."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: of(**given))


def any_values(floats: st.SearchStrategy[float] = doubles) -> st.SearchStrategy[AnyValue]:
    """Values of every kind, the empty one and the empty containers included."""
    flat: list[st.SearchStrategy[AnyValue]] = [
        st.builds(AnyValue),
        st.builds(AnyValue, string_value=texts),
        st.builds(AnyValue, bool_value=st.booleans()),
        st.builds(AnyValue, int_value=int64),
        st.builds(AnyValue, double_value=floats),
        st.builds(AnyValue, bytes_value=st.binary(max_size=8)),
        st.builds(AnyValue, string_value_strindex=int32),
    ]

    def nested(inner: st.SearchStrategy[AnyValue]) -> st.SearchStrategy[AnyValue]:
        return st.one_of(
            st.lists(inner, max_size=3).map(lambda v: AnyValue(array_value=ArrayValue(values=v))),
            st.lists(key_values_of(inner), max_size=3).map(
                lambda v: AnyValue(kvlist_value=KeyValueList(values=v))
            ),
        )

    return st.recursive(st.one_of(flat), nested, max_leaves=6)


def key_values_of(values: st.SearchStrategy[AnyValue]) -> st.SearchStrategy[KeyValue]:
    """Attributes; keys repeat often, and may be missing like the value."""
    keys = st.one_of(st.sampled_from(["a", "cirron.index", "cirron.unit_ns"]), texts)
    return messages(KeyValue, key=keys, value=values, key_strindex=int32)


def traces(floats: st.SearchStrategy[float] = doubles) -> st.SearchStrategy[TracesData]:
    """Whole TracesData messages without unknown fields."""

    def some(strategy: st.SearchStrategy[Any], count: int = 2) -> st.SearchStrategy[list[Any]]:
        return st.lists(strategy, max_size=count)

    attributes = some(key_values_of(any_values(floats)), 3)
    events = messages(
        Span.Event,
        time_unix_nano=fixed64,
        name=texts,
        attributes=attributes,
        dropped_attributes_count=fixed32,
    )
    links = messages(
        Span.Link,
        trace_id=ids,
        span_id=ids,
        trace_state=texts,
        attributes=attributes,
        dropped_attributes_count=fixed32,
        flags=fixed32,
    )
    spans = messages(
        Span,
        trace_id=ids,
        span_id=ids,
        trace_state=texts,
        parent_span_id=ids,
        flags=fixed32,
        name=texts,
        kind=st.one_of(st.integers(0, 5), int32),
        start_time_unix_nano=fixed64,
        end_time_unix_nano=fixed64,
        attributes=attributes,
        dropped_attributes_count=fixed32,
        events=some(events),
        dropped_events_count=fixed32,
        links=some(links),
        dropped_links_count=fixed32,
        status=messages(Status, message=texts, code=st.one_of(st.integers(0, 2), int32)),
    )
    scopes = messages(
        InstrumentationScope,
        name=texts,
        version=texts,
        attributes=attributes,
        dropped_attributes_count=fixed32,
    )
    refs = messages(
        EntityRef,
        schema_url=texts,
        type=texts,
        id_keys=some(texts),
        description_keys=some(texts),
    )
    resources = messages(
        Resource,
        attributes=attributes,
        dropped_attributes_count=fixed32,
        entity_refs=some(refs),
    )

    def mostly(strategy: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
        """A list that is seldom empty: else most messages would hold no span at all."""
        full = st.lists(strategy, min_size=1, max_size=count)
        return st.one_of(full, full, full, st.just([]))

    scope_spans = st.builds(
        lambda spans, around: ScopeSpans(spans=spans, **around),
        mostly(spans, 4),
        st.fixed_dictionaries({}, optional={"scope": scopes, "schema_url": texts}),
    )
    resource_spans = st.builds(
        lambda scopes, around: ResourceSpans(scope_spans=scopes, **around),
        mostly(scope_spans, 3),
        st.fixed_dictionaries({}, optional={"resource": resources, "schema_url": texts}),
    )
    return mostly(resource_spans, 3).map(lambda found: TracesData(resource_spans=found))


UNKNOWN_FIELDS = [
    b"\xa0\x06\x01",  # field 100, varint
    b"\xa2\x06\x03abc",  # field 100, bytes
    b"\xa5\x06\x01\x02\x03\x04",  # field 100, fixed32
    b"\xa1\x06\x01\x02\x03\x04\x05\x06\x07\x08",  # field 100, fixed64
    b"\xa3\x06\x08\x01\xa4\x06",  # field 100, a group
]


def descendants(message: Message) -> list[Message]:
    """`message` and every message in it."""
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in value if field.is_repeated else (value,):
                found += descendants(child)
    return found


def with_unknown(message: TracesData, choose: Callable[[int], int], raw: bytes) -> TracesData:
    """A copy of `message` with the field `raw` in one of its messages, `choose(how many)`."""
    copy = TracesData()
    copy.CopyFrom(message)
    places = descendants(copy)
    places[choose(len(places))].MergeFromString(raw)
    return copy
