from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from cirron_otel.core.otlp.json_codec import has_unknown_fields
from cirron_otel.core.otlp.split import count_spans, halve_request, split_request
from cirron_otel.errors import InputError
from tests.kit.examples import examples
from tests.kit.generators import otlp_messages as generated


def around(message: ResourceSpans | ScopeSpans, child: str) -> bytes:
    """Everything of `message` but its children."""
    copy = type(message)()
    copy.CopyFrom(message)  # type: ignore[arg-type]
    copy.ClearField(child)  # type: ignore[arg-type]
    return copy.SerializeToString(deterministic=True)


def flat(message: TracesData) -> list[tuple[bytes, bytes | None, bytes | None]]:
    """Every span with what stands around it; empty ScopeSpans and ResourceSpans too."""
    found: list[tuple[bytes, bytes | None, bytes | None]] = []
    for rs in message.resource_spans:
        resource = around(rs, "scope_spans")
        for scope in rs.scope_spans:
            spans: list[Span | None] = [*scope.spans] or [None]
            found += [
                (
                    resource,
                    around(scope, "spans"),
                    None if span is None else span.SerializeToString(deterministic=True),
                )
                for span in spans
            ]
        if not rs.scope_spans:
            found.append((resource, None, None))
    return found


def unknown_alone(message: TracesData) -> bytes:
    copy = TracesData()
    copy.CopyFrom(message)
    copy.ClearField("resource_spans")
    return copy.SerializeToString()


def spans_of(data: bytes) -> int:
    message = TracesData.FromString(data)
    return sum(len(s.spans) for rs in message.resource_spans for s in rs.scope_spans)


def check_parts(data: bytes, parts: list[bytes]) -> None:
    whole = TracesData.FromString(data)
    read = [TracesData.FromString(part) for part in parts]
    assert [unit for part in read for unit in flat(part)] == flat(whole)
    assert b"".join(map(unknown_alone, read)) == unknown_alone(whole)
    assert sum(map(count_spans, parts)) == count_spans(data) == spans_of(data)


@settings(max_examples=examples(300), deadline=None)
@given(generated.traces(), st.integers(0, 600), st.data())
def test_no_span_is_lost_and_none_lost_its_resource(
    message: TracesData, limit: int, data: st.DataObject
) -> None:
    for raw in data.draw(st.lists(st.sampled_from(generated.UNKNOWN_FIELDS), max_size=3)):
        message = generated.with_unknown(message, lambda n: data.draw(st.integers(0, n - 1)), raw)
    whole = message.SerializeToString()
    parts = split_request(whole, limit)
    check_parts(whole, parts)
    for part in parts:
        if len(part) > limit:
            assert len(flat(TracesData.FromString(part))) <= 1
    if len(whole) <= limit:
        assert parts == [whole]


@settings(max_examples=examples(200), deadline=None)
@given(generated.traces())
def test_halves(message: TracesData) -> None:
    whole = message.SerializeToString()
    halves = halve_request(whole)
    if halves is None:
        assert len(flat(message)) < 2
    else:
        check_parts(whole, list(halves))
        assert all(flat(TracesData.FromString(half)) for half in halves)


def many(spans: int, scopes: int = 1) -> bytes:
    message = TracesData()
    rs = message.resource_spans.add(schema_url="u")
    rs.resource.attributes.add(key="service.name").value.string_value = "s"
    rs.MergeFromString(b"\xa0\x06\x01")
    for number in range(scopes):
        scope = rs.scope_spans.add(schema_url=f"scope {number}")
        scope.MergeFromString(b"\xa0\x06\x02")
        for index in range(spans // scopes):
            scope.spans.add(name=f"{number}.{index}", span_id=index.to_bytes(8, "big"))
    return message.SerializeToString()


def test_parts_are_about_as_large_as_they_may_be() -> None:
    whole = many(5000, scopes=3)
    parts = split_request(whole, 10_000)
    check_parts(whole, parts)
    assert all(len(part) <= 10_000 for part in parts)
    assert all(len(part) > 9_900 for part in parts[:-1])
    assert all(has_unknown_fields(TracesData.FromString(part)) for part in parts)


def test_halves_are_about_as_large_as_each_other() -> None:
    whole = many(1000, scopes=2)
    halves = halve_request(whole)
    assert halves is not None
    assert abs(len(halves[0]) - len(halves[1])) < 100
    # The half that holds all of its ScopeSpans keeps their very bytes.
    assert all(half[:1] == b"\x0a" for half in halves)


def test_a_span_too_large_goes_alone() -> None:
    message = TracesData()
    scope = message.resource_spans.add().scope_spans.add()
    for name in ("a", "b" * 1000, "c"):
        scope.spans.add(name=name)
    parts = split_request(message.SerializeToString(), 100)
    assert [
        [s.name for s in TracesData.FromString(part).resource_spans[0].scope_spans[0].spans]
        for part in parts
    ] == [["a"], ["b" * 1000], ["c"]]


def test_a_request_and_traces_data_are_the_same_on_the_wire() -> None:
    parts = split_request(many(100), 500)
    assert len(parts) > 2
    requests = [ExportTraceServiceRequest.FromString(part) for part in parts]
    assert sum(len(r.resource_spans[0].scope_spans[0].spans) for r in requests) == 100


def test_request_within_the_limit_is_returned_unparsed() -> None:
    assert split_request(b"no protobuf", 100) == [b"no protobuf"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05\x01",
        b"\xff" * 20,
        b"\x0a\x02\x12\x05",
        b"\x00\x00",
        b"\x0b\x0b\x0b",
        b"\x0c",
        b"\x0f\x00",
        b"\x0a\x04\x12\x02\x12\x7f",
        b"\x0b" * 300,
    ],
)
def test_data_that_is_not_protobuf_is_refused(data: bytes) -> None:
    for refuse in (lambda: split_request(data, 0), lambda: halve_request(data)):
        with pytest.raises(InputError, match="not a protobuf message"):
            refuse()
    with pytest.raises(InputError, match="not a protobuf message"):
        count_spans(data)


def test_counting_and_splitting_tolerate_invalid_utf8() -> None:
    bad_text = b"\x0a\x0c\x12\x0a\x12\x03\x2a\x01\xff\x12\x03\x2a\x01a"
    with pytest.raises(DecodeError, match="UTF-8"):
        TracesData.FromString(bad_text)
    assert count_spans(bad_text) == 2
    first, second = split_request(bad_text, 10)
    assert b"\x2a\x01\xff" in first
    assert b"\x2a\x01a" in second
