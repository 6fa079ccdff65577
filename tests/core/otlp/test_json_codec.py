from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData

from cirron_otel.core.otlp.json_codec import (
    has_unknown_fields,
    json_losses,
    traces_from_json,
    traces_to_json,
)
from tests.kit.examples import examples
from tests.kit.generators import otlp_messages as generated

from .documents import (
    document,
    nested_value,
    only_value,
    value_document,
    with_span,
    with_value,
)

# One table, run both ways: a message, and the JSON that stands for it and nothing else.
EXACT: list[tuple[TracesData, str]] = [
    (TracesData(), "{}"),
    (with_span(), '{"resourceSpans":[{"scopeSpans":[{"spans":[{}]}]}]}'),
    (
        with_span(trace_id=b"\x5b\x8e\xff" + bytes(13), span_id=b"\xee" * 8, parent_span_id=b"\1"),
        '{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"5b8eff00000000000000000000000000"'
        ',"spanId":"eeeeeeeeeeeeeeee","parentSpanId":"01"}]}]}]}',
    ),
    (
        with_span(kind=3, start_time_unix_nano=2**64 - 1, flags=0xFFFFFFFF, status=Status()),
        '{"resourceSpans":[{"scopeSpans":[{"spans":[{"flags":4294967295,"kind":3,'
        '"startTimeUnixNano":"18446744073709551615","status":{}}]}]}]}',
    ),
    (
        with_span(kind=77, status=Status(message="no", code=2)),  # type: ignore[arg-type]
        '{"resourceSpans":[{"scopeSpans":[{"spans":[{"kind":77,"status":{"message":"no","code":2}'
        "}]}]}]}",
    ),
    *(
        (
            with_value(value),
            '{"resourceSpans":[{"resource":{"attributes":[{"key":"k","value":' + text + "}]}}]}",
        )
        for value, text in [
            (AnyValue(), "{}"),
            (AnyValue(string_value=""), '{"stringValue":""}'),
            (AnyValue(string_value="é\0\u2028"), '{"stringValue":"é\\u0000\u2028"}'),
            (AnyValue(bool_value=False), '{"boolValue":false}'),
            (AnyValue(int_value=-(2**63)), '{"intValue":"-9223372036854775808"}'),
            (AnyValue(double_value=0.1), '{"doubleValue":0.1}'),
            (AnyValue(double_value=-0.0), '{"doubleValue":-0.0}'),
            (AnyValue(double_value=5e-324), '{"doubleValue":5e-324}'),
            (AnyValue(double_value=math.inf), '{"doubleValue":"Infinity"}'),
            (AnyValue(double_value=-math.inf), '{"doubleValue":"-Infinity"}'),
            (AnyValue(double_value=math.nan), '{"doubleValue":"NaN"}'),
            (AnyValue(bytes_value=b"\xfb\xff"), '{"bytesValue":"+/8="}'),
            (AnyValue(bytes_value=b""), '{"bytesValue":""}'),
            (AnyValue(array_value={}), '{"arrayValue":{}}'),  # type: ignore[arg-type]
            (AnyValue(kvlist_value={}), '{"kvlistValue":{}}'),  # type: ignore[arg-type]
            (AnyValue(string_value_strindex=-1), '{"stringValueStrindex":-1}'),
        ]
    ),
]


@pytest.mark.parametrize(("message", "text"), EXACT, ids=[text[-60:] for _, text in EXACT])
def test_table_both_ways(message: TracesData, text: str) -> None:
    assert traces_to_json(message).decode() == text
    back, warnings = traces_from_json(text.encode())
    assert back.SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )
    assert warnings == []


@settings(max_examples=examples(400), deadline=None)
@given(generated.traces())
def test_proto_to_json_to_proto_is_equal_to_the_bit(message: TracesData) -> None:
    text = traces_to_json(message)
    assert b"\n" not in text
    back, warnings = traces_from_json(text)
    assert back.SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )
    assert warnings == []
    assert json_losses(message) == []
    assert traces_to_json(back) == text


@settings(max_examples=examples(200), deadline=None)
@given(generated.traces(), st.randoms(use_true_random=False))
def test_snake_case_numbers_and_the_slow_parser_read_the_same(
    message: TracesData, rng: Any
) -> None:
    """What other writers do to the same document: other key spelling, layout, and bare tokens."""

    def respell(value: Any) -> Any:
        if isinstance(value, dict):
            return {respell_key(k): respell_scalar(k, v) for k, v in value.items()}
        if isinstance(value, list):
            return [respell(v) for v in value]
        return value

    def respell_key(key: str) -> str:
        snake = "".join("_" + c.lower() if c.isupper() else c for c in key)
        return str(rng.choice([key, snake]))

    def respell_scalar(key: str, value: Any) -> Any:
        if key in ("intValue", "startTimeUnixNano", "endTimeUnixNano", "timeUnixNano"):
            return rng.choice([value, int(value)])
        if key in ("traceId", "spanId", "parentSpanId"):
            return rng.choice([value, value.upper()])
        if key == "doubleValue" and isinstance(value, str):
            return rng.choice([value, float(value)])  # written as a bare NaN or Infinity
        if key == "doubleValue" and value == 0 and math.copysign(1, value) > 0:
            return 0
        if key == "bytesValue":
            return rng.choice([value, value.rstrip("="), value.replace("+", "-").replace("/", "_")])
        return respell(value)

    other = json.dumps(
        respell(json.loads(traces_to_json(message))),
        indent=rng.choice([None, 1]),
        ensure_ascii=rng.choice([True, False]),
    )
    back, warnings = traces_from_json(other.encode())
    assert back.SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )
    assert warnings == []


def test_minus_zero_is_read_from_the_text() -> None:
    for text in ("-0", "-0.0", "-0e0", " -0 ", "\n-0\n"):
        value = only_value(traces_from_json(value_document('{"doubleValue":' + text + "}"))[0])
        assert struct.pack("<d", value.double_value) == struct.pack("<d", -0.0), text
    one = traces_from_json(value_document('{"intValue":-0}'))[0]
    assert only_value(one).int_value == 0
    listed = b'{"arrayValue":{"values":[{"doubleValue":-0},{"stringValue":"[-0,"}]}}'.decode()
    values = only_value(traces_from_json(value_document(listed))[0]).array_value.values
    assert math.copysign(1, values[0].double_value) == -1
    assert values[1].string_value == "[-0,"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", 3.0),
        ("9007199254740993", 9007199254740992.0),
        ("18446744073709551616", 18446744073709551616.0),
        ("-9223372036854775809", -9223372036854775808.0),
        ("123456789012345678901234567890", 1.2345678901234568e29),
        ("1e-400", 0.0),
        ('"1.5"', 1.5),
        ('"-1e3"', -1000.0),
        ("NaN", math.nan),
        ("-Infinity", -math.inf),
    ],
)
def test_numbers_that_a_double_takes(text: str, expected: float) -> None:
    for padding in ("", ',{"doubleValue":-0}', ',{"doubleValue":NaN}'):  # fast and slow parser
        listed = f'{{"arrayValue":{{"values":[{{"doubleValue":{text}}}{padding}]}}}}'
        value = only_value(traces_from_json(value_document(listed))[0]).array_value.values[0]
        assert struct.pack("<d", value.double_value) == struct.pack("<d", expected)


@pytest.mark.parametrize(
    ("text", "expected"), [("1e3", 1000), ('"-5"', -5), ("7", 7), ("-2.0", -2), ('"007"', 7)]
)
def test_numbers_that_an_integer_takes(text: str, expected: int) -> None:
    assert only_value(traces_from_json(value_document(f'{{"intValue":{text}}}'))[0]).int_value == (
        expected
    )


def test_unknown_keys_are_ignored_and_reported() -> None:
    text = document({"name": "n", "colour": 1, "attributes": [{"key": "k", "value": {"uuid": 1}}]})
    message, warnings = traces_from_json(text.replace(b'{"resource', b'{"x":0,"resource', 1))
    assert message.resource_spans[0].scope_spans[0].spans[0].name == "n"
    value = message.resource_spans[0].scope_spans[0].spans[0].attributes[0]
    assert value.HasField("value")
    assert warnings == [
        "unknown key 'x' in TracesData ignored",
        "unknown key 'colour' in Span ignored",
        "unknown key 'uuid' in AnyValue ignored",
    ]


@pytest.mark.parametrize("empty", ["null", "[]", "{}"])
@pytest.mark.parametrize("key", ["resourceLogs", "newer"])
def test_empty_unknown_values_are_no_loss(key: str, empty: str) -> None:
    text = document({"name": "n"})
    for data in (
        text.replace(b'{"resource', f'{{"{key}":{empty},"resource'.encode(), 1),
        text.replace(b'{"name', f'{{"{key}":{empty},"name'.encode(), 1),
        value_document(f'{{"stringValue":"a","{key}":{empty}}}'),
    ):
        assert key.encode() in data
        assert traces_from_json(data)[1] == []


def test_a_partial_success_is_no_loss_at_the_top_only() -> None:
    partial = b'"partialSuccess":{"rejectedSpans":"1"},'
    text = document({"name": "n"})
    assert traces_from_json(text.replace(b'{"resource', b"{" + partial + b'"resource', 1))[1] == []
    (loss,) = traces_from_json(text.replace(b'{"name', b"{" + partial + b'"name', 1))[1]
    assert loss == "unknown key 'partialSuccess' in Span ignored"


def test_spans_of_instrumentation_libraries_are_reported_with_their_new_name() -> None:
    old = b'{"resourceSpans":[{"instrumentationLibrarySpans":[{"spans":[{}]}]}]}'
    (loss,) = traces_from_json(old)[1]
    assert "scopeSpans" in loss
    assert "in ResourceSpans ignored" in loss


def test_the_report_of_unknown_keys_is_bounded() -> None:
    spans = [{f"key{n}" + "x" * 1000: n, "again": 1} for n in range(500)]
    text = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    message, warnings = traces_from_json(text)
    assert len(message.resource_spans[0].scope_spans[0].spans) == 500
    assert len(warnings) == 101
    assert "unknown key 'again' in Span ignored (500 times)" in warnings
    assert warnings[-1] == "401 other unknown keys ignored"
    assert max(map(len, warnings)) < 120


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        (r"\ud800", "\ufffd", 1),
        (r"a\uD800b\udc00", "a\ufffdb\ufffd", 2),
        (r"\ud800\ud83d\ude00", "\ufffd\U0001f600", 1),
        (r"\ude00\ud83d", "\ufffd\ufffd", 2),
        (r"\\ud800 \u0041\ud83d\ude00", "\\ud800 A\U0001f600", 0),
        (r"\\\ud800", "\\\ufffd", 1),
        (r"\ud800\\udc00", "\ufffd\\udc00", 1),
    ],
)
@pytest.mark.parametrize("more", ["", ',"x":-0', ',"x":NaN'])
def test_half_of_a_surrogate_pair_is_replaced_and_reported(
    text: str, expected: str, count: int, more: str
) -> None:
    """As in Go's decoder. With -0 or NaN in it a document goes through another parser."""
    written = '{"stringValue":"' + text + '"' + more + "}"
    message, losses = traces_from_json(value_document(written))
    assert only_value(message).string_value == expected
    reported = [line for line in losses if "surrogate" in line]
    halves = "1 half of a surrogate pair" if count == 1 else f"{count} halves of surrogate pairs"
    assert reported == ([f"{halves} in strings replaced by U+FFFD"] if count else [])


def test_null_is_an_absent_field() -> None:
    text = document({"name": None, "status": None, "events": None, "traceId": "ab"})
    message, warnings = traces_from_json(text)
    assert message == with_span(trace_id=b"\xab")
    assert not message.resource_spans[0].scope_spans[0].spans[0].HasField("status")
    assert warnings == []
    empty, _ = traces_from_json(value_document('{"stringValue":null}'))
    assert empty == with_value(AnyValue())


def test_enum_names_are_read() -> None:
    message, _ = traces_from_json(
        document({"kind": "SPAN_KIND_SERVER", "status": {"code": "STATUS_CODE_ERROR"}})
    )
    span = message.resource_spans[0].scope_spans[0].spans[0]
    assert span.kind == Span.SPAN_KIND_SERVER
    assert span.status.code == Status.STATUS_CODE_ERROR


# What a Collector's file exporter (pdata's JSON marshaler) writes: default values of strings and
# an empty status are spelled out, the empty parent id is "".
COLLECTOR_LINE = (
    rb'{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":'
    rb'"cirron"}},{"key":"process.pid","value":{"intValue":"8"}}]},"scopeSpans":[{"scope":{"name":'
    rb'"cirron","version":"0.3.0"},"spans":[{"traceId":"5b8efff798038103d269b633813fc60c","spanId":'
    rb'"eee19b7ec3c1b174","parentSpanId":"","flags":257,"name":"step","kind":1,"startTimeUnixNano":'
    rb'"1795197734691234492","endTimeUnixNano":"1795197734746565768","attributes":[{"key":"d",'
    rb'"value":{"doubleValue":1.5e-7}},{"key":"l","value":{"arrayValue":{"values":[{"boolValue":'
    rb'true},{"bytesValue":"AAE="},{}]}}}],"events":[{"timeUnixNano":"1795197734746565700","name":'
    rb'"loss","attributes":[{"key":"cirron.mark.value","value":{"doubleValue":0}}]}],"links":[{'
    rb'"traceId":"5b8efff798038103d269b633813fc60c","spanId":"eee19b7ec3c1b175","flags":1}],'
    rb'"status":{}}]}],"schemaUrl":"https://opentelemetry.io/schemas/1.38.0"}]}'
)


def test_a_collectors_line_is_read_right() -> None:
    message, warnings = traces_from_json(COLLECTOR_LINE)
    expected = TracesData()
    rs = expected.resource_spans.add(schema_url="https://opentelemetry.io/schemas/1.38.0")
    rs.resource.attributes.add(key="service.name").value.string_value = "cirron"
    rs.resource.attributes.add(key="process.pid").value.int_value = 8
    scope_spans = rs.scope_spans.add()
    scope_spans.scope.name, scope_spans.scope.version = "cirron", "0.3.0"
    trace_id = bytes.fromhex("5b8efff798038103d269b633813fc60c")
    span = scope_spans.spans.add(
        trace_id=trace_id,
        span_id=bytes.fromhex("eee19b7ec3c1b174"),
        flags=257,
        name="step",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=1795197734691234492,
        end_time_unix_nano=1795197734746565768,
    )
    span.attributes.add(key="d").value.double_value = 1.5e-7
    values = span.attributes.add(key="l").value.array_value.values
    values.add().bool_value = True
    values.add().bytes_value = b"\0\1"
    values.add()
    event = span.events.add(time_unix_nano=1795197734746565700, name="loss")
    event.attributes.add(key="cirron.mark.value").value.double_value = 0.0
    span.links.add(trace_id=trace_id, span_id=bytes.fromhex("eee19b7ec3c1b175"), flags=1)
    span.status.SetInParent()
    assert message == expected
    assert warnings == []


@settings(max_examples=examples(200), deadline=None)
@given(generated.traces(), st.data())
def test_unknown_fields_are_detected_in_any_message(message: TracesData, data: Any) -> None:
    assert not has_unknown_fields(message)
    raw = data.draw(st.sampled_from(generated.UNKNOWN_FIELDS))
    marked = generated.with_unknown(
        message, lambda count: data.draw(st.integers(0, count - 1)), raw
    )
    assert has_unknown_fields(marked)
    line = traces_to_json(marked)
    assert json_losses(marked) == ["unknown protobuf fields cannot be represented in JSON"]
    assert json_losses(marked, line) == json_losses(marked)
    assert traces_from_json(line)[0] == message


@pytest.mark.parametrize("depth", [1, 10, 25, 29, 30, 31, 40, 47, 48])
def test_unknown_fields_are_detected_at_any_depth(depth: int) -> None:
    """Also below the 64th level, where the C library's DiscardUnknownFields gives up."""
    message, _ = traces_from_json(value_document(nested_value(depth, "arrayValue")))
    assert not has_unknown_fields(message)
    deepest = generated.descendants(message)[-1]
    deepest.MergeFromString(b"\xa0\x06\x01")
    assert has_unknown_fields(message)
    assert len(json_losses(message, traces_to_json(message))) == 1
    assert has_unknown_fields(message.resource_spans[0].resource.attributes[0])
    assert has_unknown_fields(TracesData.FromString(message.SerializeToString()))


@settings(max_examples=50, deadline=None)
@given(generated.odd_nans)
def test_nan_bits_not_representable_in_json_are_reported(nan: float) -> None:
    for value in (
        AnyValue(double_value=nan),
        AnyValue(array_value={"values": [AnyValue(double_value=nan)]}),  # type: ignore[arg-type]
    ):
        message = with_value(value)
        assert json_losses(message) == json_losses(message, traces_to_json(message))
        assert json_losses(message) == [
            "the bits of a non-standard NaN cannot be represented in JSON"
        ]
