"""The fast way for OTLP of any service says what the slow way says, and loses nothing either."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, TracesData

from cirron_otel import exactjson
from cirron_otel.core.records.canonical import batch_bytes
from cirron_otel.core.translator.foreign.batch_header import drop_headers
from cirron_otel.core.translator.foreign.fast import ForeignText, Known
from cirron_otel.core.translator.foreign.messages import RECEIVED, decode_foreign
from cirron_otel.core.translator.translate import encode_foreign
from cirron_otel.errors import InputError
from cirron_otel.ids import uuid4_shaped
from tests.kit.examples import examples
from tests.kit.generators.strategies import traces

BATCH_ID = uuid4_shaped(bytes(range(16)))
NOW = 1_795_197_734_691_234_492


KNOWN = Known()
"""What is known of all requests of these tests, refused ones among them."""


def made(*requests: bytes) -> dict[str, Any]:
    """The batch of the requests, read again: the same whatever is known of others."""
    first, second = ForeignText(), ForeignText(KNOWN)
    for data in requests:
        assert first.add(data) == second.add(data)
    told = first.text(BATCH_ID, NOW)
    assert second.text(BATCH_ID, NOW) == told
    batch = exactjson.loads(told)
    assert isinstance(batch, dict)
    return batch


def slow(*requests: bytes) -> dict[str, Any]:
    """The same, by the slow way."""
    messages = [each for data in requests for each in TracesData.FromString(data).resource_spans]
    batch = decode_foreign(messages)
    batch["batch_id"], batch["created_ns"] = BATCH_ID, NOW
    batch["otel"][RECEIVED] = NOW
    return batch


def written(batch: dict[str, Any]) -> bytes:
    """The messages that the batch holds, without its header, as one request."""
    data = TracesData(resource_spans=encode_foreign(batch))
    assert drop_headers(data.resource_spans)
    return data.SerializeToString()


USUAL = Span(
    trace_id=b"t" * 16, span_id=b"s" * 8, name="n", kind=2, start_time_unix_nano=5,
    end_time_unix_nano=NOW,
)  # fmt: skip


def request(**fields: Any) -> bytes:
    """One span, with a resource and a scope."""
    message = ResourceSpans()
    pair = message.resource.attributes.add(key="service.name")
    pair.value.string_value = "shop"
    scope = message.scope_spans.add()
    scope.scope.name = "http"
    defaults = {
        "trace_id": b"t" * 16, "span_id": b"s" * 8, "name": "GET", "kind": 2,
        "start_time_unix_nano": NOW - 5, "end_time_unix_nano": NOW,
    }  # fmt: skip
    scope.spans.append(Span(**(defaults | fields)))
    return TracesData(resource_spans=[message]).SerializeToString()


def attribute(key: str = "k", **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


SPANS: dict[str, dict[str, Any]] = {
    "plain": {"start_time_unix_nano": 1, "end_time_unix_nano": 2**64 - 1, "kind": 3},
    "without times": {"start_time_unix_nano": 0, "end_time_unix_nano": 0},
    "that has not ended": {"end_time_unix_nano": 0},
    "of no kind": {"kind": 0},
    "of no name": {"name": ""},
    "with a parent": {"parent_span_id": b"p" * 8, "flags": 0x101, "trace_state": "a=b"},
    "of a status": {"status": {"code": 2, "message": "no"}},
    "of an empty status": {"status": {}},
    "of an unknown kind": {"kind": 77},
    "with counts": {
        "dropped_attributes_count": 1, "dropped_events_count": 2, "dropped_links_count": 3,
    },
    "of a thread": {"attributes": [attribute("thread.id", int_value=7)]},
    "of a thread of text": {"attributes": [attribute("thread.id", string_value="7")]},
    "with all kinds": {
        "attributes": [
            attribute("s", string_value="ä\0"), attribute("i", int_value=-(2**63)),
            attribute("b", bool_value=False), attribute("d", double_value=1.0),
            attribute("z", double_value=-0.0), attribute("e", double_value=5e-324),
            attribute("m", double_value=1.7976931348623157e308),
            attribute("a", array_value={"values": [{"int_value": 1}, {"double_value": 1.0}]}),
            attribute("", string_value=""),
        ]
    },
    "with nan": {"attributes": [attribute(double_value=float("nan"))]},
    "with infinity in a list": {
        "attributes": [attribute(array_value={"values": [{"double_value": float("-inf")}]})]
    },
    "with bytes": {"attributes": [attribute(bytes_value=b"\xff")]},
    "with a map": {"attributes": [attribute(kvlist_value={"values": [attribute(int_value=1)]})]},
    "with an empty value": {"attributes": [attribute()]},
    "with no value": {"attributes": [{"key": "k"}]},
    "with an empty value in a list": {"attributes": [attribute(array_value={"values": [{}]})]},
    "with a key twice": {"attributes": [attribute(int_value=1), attribute(int_value=2)]},
    "with an empty list": {"attributes": [attribute(array_value={})]},
    "with events": {
        "events": [
            {"name": "e", "time_unix_nano": 5, "attributes": [attribute(int_value=1)]},
            {"dropped_attributes_count": 9},
        ]
    },
    "with an event of bytes": {"events": [{"attributes": [attribute(bytes_value=b"")]}]},
    "with links": {
        "links": [
            {"trace_id": b"u" * 16, "span_id": b"v" * 8, "trace_state": "x=y", "flags": 1,
             "attributes": [attribute(string_value="x")], "dropped_attributes_count": 4},
            {},
        ]
    },
    "with a key of a table": {"attributes": [{"key": "k", "key_strindex": 5}]},
    "with a value and a key of a table": {
        "attributes": [attribute(int_value=1) | {"key_strindex": 5}]
    },
    "with a text of a table": {"attributes": [attribute(string_value_strindex=5)]},
    "with a key of a table in an event": {
        "events": [{"attributes": [attribute(int_value=1) | {"key_strindex": 5}]}]
    },
    "with a key of a table in a link": {
        "links": [{"attributes": [attribute(int_value=1) | {"key_strindex": 5}]}]
    },
    "of a long name": {"name": "\0" * 70_000 + "\U0001f600"},
    "with a long text": {"attributes": [attribute(string_value="\U0001f600" + "x" * 70_000)]},
    "of a long status": {"status": {"code": 2, "message": "\0" * 70_000}},
    "with a long event": {"events": [{"name": "x" * 70_000}]},
    "of a short id": {"span_id": b"s"},
    "of no id": {"span_id": b""},
    "of a zero id": {"span_id": bytes(8)},
    "of a zero trace": {"trace_id": bytes(16)},
    "of a long trace": {"trace_id": bytes(17)},
    "of a short parent": {"parent_span_id": b"p"},
    "of a zero parent": {"parent_span_id": bytes(8)},
}  # fmt: skip


@pytest.mark.parametrize("fields", SPANS.values(), ids=SPANS)
def test_a_span(fields: dict[str, Any]) -> None:
    data = request(**fields)
    assert exactjson.equal(made(data), slow(data))
    assert batch_bytes(made(data)) == batch_bytes(slow(data))
    assert written(made(data)) == data


UNKNOWN = {
    "an unknown number": b"\xa0\x06\x01",
    "an unknown text": b"\xa2\x06\x01x",
    "a default": b"\x30\x00",
}


@pytest.mark.parametrize("tail", UNKNOWN.values(), ids=UNKNOWN)
def test_bytes_that_are_written_otherwise(tail: bytes) -> None:
    span = USUAL.SerializeToString() + tail
    scope = b"\x12" + bytes([len(span)]) + span
    resource = b"\x12" + bytes([len(scope)]) + scope
    data = b"\x0a" + bytes([len(resource)]) + resource
    batch = made(data)
    assert exactjson.equal(batch, slow(data))
    assert written(batch) == TracesData.FromString(data).SerializeToString()


def test_fields_out_of_order() -> None:
    first = Span(trace_id=b"t" * 16).SerializeToString()
    span = Span(name="n").SerializeToString() + first + Span(span_id=b"s" * 8).SerializeToString()
    scope = b"\x12" + bytes([len(span)]) + span
    resource = b"\x12" + bytes([len(scope)]) + scope
    data = b"\x0a" + bytes([len(resource)]) + resource
    assert exactjson.equal(made(data), slow(data))


def test_several_requests() -> None:
    some = [request(name=str(number)) for number in range(3)]
    assert exactjson.equal(made(*some, some[0]), slow(*some, some[0]))


@pytest.mark.parametrize("kind", ["resource", "scope"])
def test_resources_and_scopes_are_not_taken_for_others(kind: str) -> None:
    """Nor where schema_url and content are the same text, one behind the other."""
    first, second = ResourceSpans(), ResourceSpans()
    if kind == "resource":
        second.resource.attributes.add(key="a").value.string_value = "b"
        inner = second.resource.SerializeToString().decode()
        first.resource.attributes.add(key="k").value.string_value = f"x {inner}"
        told = first.resource.SerializeToString().decode()
    else:
        second.scope_spans.add().scope.name = "b"
        inner = second.scope_spans[0].scope.SerializeToString().decode()
        first.scope_spans.add().scope.name = f"x {inner}"
        told = first.scope_spans[0].scope.SerializeToString().decode()
    owner = second if kind == "resource" else second.scope_spans[0]
    owner.schema_url = f" {told}".removesuffix(f" {inner}")
    some = [TracesData(resource_spans=[each]).SerializeToString() for each in (first, second)]
    assert exactjson.equal(made(*some), slow(*some))


def test_invalid_request_adds_nothing() -> None:
    text = ForeignText()
    text.add(request())
    with pytest.raises(InputError, match="not a protobuf TracesData"):
        text.add(b"\xff\xff")
    assert text.spans == 1


@given(traces)
@settings(max_examples=60, deadline=None)
def test_any_message(message: TracesData) -> None:
    told = message.SerializeToString()
    assert exactjson.equal(made(told), slow(told))
    if message.resource_spans:
        assert written(made(told)) == told
    else:
        assert encode_foreign(made(told)) is None


PAIRS = {
    "a number of two bytes": b"\x0a\x01k\x12\x03\x18\x80\x01",
    "a number of five bytes": b"\x0a\x01k\x12\x06\x18\x80\x80\x80\x80\x01",
    "a number of six bytes": b"\x0a\x01k\x12\x07\x18\x80\x80\x80\x80\x80\x01",
    "a number of nine bytes": b"\x0a\x01k\x12\x0a\x18" + b"\xff" * 8 + b"\x7f",
    "a number of ten bytes": b"\x0a\x01k\x12\x0b\x18" + b"\xff" * 9 + b"\x01",
    "a number in more bytes than it needs": b"\x0a\x01k\x12\x04\x18\x80\x81\x00",
    "zero in two bytes": b"\x0a\x01k\x12\x03\x18\x80\x00",
    "a number and more": b"\x0a\x01k\x12\x05\x18\x01\x18\x02\x18",
    "two numbers": b"\x0a\x01k\x12\x04\x18\x01\x18\x02",
    "a number that is cut off": b"\x0a\x01k\x12\x02\x18\x80",
    "a text": b"\x0a\x01k\x12\x03\x0a\x01v",
    "an empty text": b"\x0a\x01k\x12\x02\x0a\x00",
    "a text that is cut off": b"\x0a\x01k\x12\x03\x0a\x02v",
    "a text that is none": b"\x0a\x01k\x12\x03\x0a\x01\xff",
    "a key that is none": b"\x0a\x01\xff\x12\x03\x0a\x01v",
    "no key": b"\x12\x03\x0a\x01v",
    "an empty key": b"\x0a\x00\x12\x03\x0a\x01v",
    "the value first": b"\x12\x03\x0a\x01v\x0a\x01k",
    "two values": b"\x0a\x01k\x12\x03\x0a\x01v\x12\x02\x18\x01",
    "an unknown field": b"\x0a\x01k\x12\x03\x0a\x01v\x1a\x01x",
    "an unknown field in the value": b"\x0a\x01k\x12\x06\x0a\x01v\x4a\x01x",
    "a length in two bytes": b"\x0a\x81\x00k\x12\x03\x0a\x01v",
    "no value": b"\x0a\x01k",
    "an empty value": b"\x0a\x01k\x12\x00",
    "nothing": b"",
}


def with_pair(pair: bytes) -> bytes:
    """A request whose span has an attribute of those bytes."""
    told = USUAL.SerializeToString() + b"\x4a" + bytes([len(pair)]) + pair
    for tag in (b"\x12", b"\x12", b"\x0a"):  # ScopeSpans.spans, ResourceSpans.scope_spans, ...
        told = tag + bytes([len(told)]) + told
    return told


def same_or_refused(told: bytes) -> None:
    """The fast way says what the slow way says, and refuses what that refuses."""
    try:
        expected = slow(told)
    except DecodeError:
        with pytest.raises(InputError):
            made(told)
        return
    assert exactjson.equal(made(told), expected)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_the_bytes_of_an_attribute(pair: bytes) -> None:
    same_or_refused(with_pair(pair))


@pytest.mark.parametrize(
    "name", ["a number of two bytes", "a text", "an empty text", "an empty key"]
)
def test_the_bytes_are_read_as_usual(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the slow way: what is said of it here is said of the fast one."""
    monkeypatch.setattr("cirron_otel.core.translator.foreign.fast.span_record", None)
    assert ForeignText().add(with_pair(PAIRS[name])) == 1


def nested(levels: int, leaf: bytes) -> bytes:
    """A KeyValue of an array in an array, and so on: each level is two messages."""
    value = leaf
    for _ in range(levels):
        for tag in (b"\x0a", b"\x2a"):  # ArrayValue.values, AnyValue.array_value
            value = field(tag, value)
    return field(b"\x0a", b"k") + field(b"\x12", value)


def field(tag: bytes, value: bytes) -> bytes:
    size = len(value)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return tag + length + value


@pytest.mark.parametrize("leaf", [b"", b"\x18\x01", b"\x2a\x00"], ids=["empty", "number", "array"])
@pytest.mark.parametrize("levels", range(44, 52))
def test_attributes_too_deep_for_protobuf_are_refused(levels: int, leaf: bytes) -> None:
    """Counted from the whole request on, wherever it stands, and also where it is known."""
    pair, span = nested(levels, leaf), USUAL.SerializeToString()
    event = field(b"\x5a", field(b"\x1a", pair))
    spans = [field(b"\x12", span + field(b"\x4a", pair)), field(b"\x12", span + event)]
    scope = field(b"\x0a", field(b"\x1a", pair))  # InstrumentationScope.attributes
    resource = field(b"\x0a", field(b"\x0a", pair))
    for told in (*spans, scope):
        same_or_refused(field(b"\x0a", field(b"\x12", told)))
    same_or_refused(field(b"\x0a", resource))
    same_or_refused(field(b"\x0a", resource + field(b"\x12", field(b"\x12", span))))


def test_an_attribute_is_in_a_span() -> None:
    batch = made(with_pair(PAIRS["a number of two bytes"]))
    assert [span["attrs"] for span in batch["spans"]] == [{"k": 128}]


@given(traces, st.data())
@settings(max_examples=examples(150), deadline=None)
def test_any_bytes(message: TracesData, data: st.DataObject) -> None:
    told = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if told:
            told[data.draw(st.integers(0, len(told) - 1))] = data.draw(st.integers(0, 255))
    same_or_refused(bytes(told))


def test_cache_of_known_parts_is_bounded_in_bytes() -> None:
    """Whatever comes: many resources, long ones, and texts that JSON makes six times as long."""
    known = Known()
    for number in range(600):
        message = ResourceSpans(schema_url="u" * (number * 16))
        message.resource.attributes.add(key="k").value.string_value = str(number)
        span = message.scope_spans.add().spans.add()
        span.CopyFrom(USUAL)
        for key in range(8):
            text = "\0" * (number * 4) + str(number)
            span.attributes.add(key=f"{number} {key}").value.string_value = text
        ForeignText(known).add(TracesData(resource_spans=[message]).SerializeToString())
    assert 0 < len(known.bare) <= 128
    assert max(len(url) + len(data or b"") for _, url, data in known.bare) <= 4096
    assert 0 < len(known.pairs) <= 2048
    assert max(len(data) + len(member) for data, (_, member) in known.pairs.items()) <= 2048
