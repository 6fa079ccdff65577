from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.json_codec import traces_from_json, traces_to_json
from cirron_otel.errors import InputError
from tests.kit.examples import examples

from .documents import document, nested_value, value_document

BAD_VALUES = {
    '{"intValue":9223372036854775808}': "out of range for int64",
    '{"intValue":"-9223372036854775809"}': "out of range for int64",
    '{"intValue":-9223372036854775809}': "the number -9223372036854775809 is out of range",
    '{"intValue":18446744073709551616}': "the number 18446744073709551616 is out of range",
    '{"intValue":1.5}': "expected int64 (a decimal string or a number), found the number 1.5",
    '{"intValue":true}': "expected int64",
    '{"intValue":"1_0"}': "expected int64",
    '{"intValue":" 1"}': "expected int64",
    '{"intValue":"٣"}': "expected int64",
    '{"intValue":"²"}': "expected int64",
    '{"intValue":"--1"}': "expected int64",
    '{"intValue":""}': "expected int64",
    '{"intValue":NaN}': "expected int64",
    '{"intValue":Infinity}': "expected int64",
    '{"intValue":"' + "9" * 5000 + '"}': "out of range for int64",
    '{"doubleValue":"nan"}': "expected a number",
    '{"doubleValue":"1_0"}': "expected a number",
    '{"doubleValue":"1e999"}': "out of range for a double",
    '{"doubleValue":1e999}': "number",
    '{"doubleValue":[-0,1e999]}': "number",
    '{"doubleValue":true}': "expected a number",
    '{"stringValue":5}': "expected a string, found the number 5",
    '{"stringValue":NaN}': "expected a string, found the number NaN",
    '{"boolValue":"true"}': "expected true or false",
    '{"boolValue":1}': "expected true or false",
    '{"bytesValue":"a"}': "expected base64",
    '{"bytesValue":"ab=c"}': "expected base64",
    '{"bytesValue":"YQ===="}': "expected base64",
    '{"bytesValue":"Y Q="}': "expected base64",
    '{"bytesValue":"é"}': "expected base64",
    '{"bytesValue":[]}': "expected a base64 string",
    '{"arrayValue":[]}': "expected an object (ArrayValue)",
    '{"arrayValue":{"values":{}}}': "expected an array",
    '{"arrayValue":{"values":[null]}}': "expected an object (AnyValue), found null",
    '{"kvlistValue":{"values":[5]}}': "expected an object (KeyValue)",
    '{"stringValue":"a","intValue":"1"}': "expected one value, found both stringValue and intValue",
    "5": "expected an object (AnyValue)",
}


@pytest.mark.parametrize(("text", "reason"), BAD_VALUES.items(), ids=lambda text: text[:50])
def test_bad_values_are_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        traces_from_json(value_document(text))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


BAD_SPANS: list[tuple[dict[str, Any], str]] = [
    ({"traceId": "abc"}, "spans[0].traceId: expected hex digits"),
    ({"traceId": "a b "}, "spans[0].traceId: expected hex digits"),
    ({"spanId": "zz"}, "spans[0].spanId: expected hex digits"),
    ({"spanId": 5}, "spans[0].spanId: expected a string of hex digits"),
    ({"startTimeUnixNano": -1}, "spans[0].startTimeUnixNano: the number -1 is out of range"),
    ({"flags": 2**32}, "spans[0].flags: the number 4294967296 is out of range for uint32"),
    ({"kind": "SPAN_KIND_NONE"}, "spans[0].kind: expected an integer or one of SPAN_KIND_UNSPEC"),
    ({"kind": 2**31}, "spans[0].kind: the number 2147483648 is out of range for int32"),
    ({"name": []}, "spans[0].name: expected a string, found an array"),
    ({"status": 2}, "spans[0].status: expected an object (Status)"),
    ({"status": {"code": 1.5}}, "spans[0].status.code: expected int32"),
    ({"events": [{}, {"name": 1}]}, "spans[0].events[1].name: expected a string"),
    ({"attributes": [{"key": 1}]}, "spans[0].attributes[0].key: expected a string"),
    (
        {
            "attributes": [
                {"key": "a", "value": {"arrayValue": {"values": [{}, {"intValue": "x"}]}}}
            ]
        },
        "spans[0].attributes[0].value.arrayValue.values[1].intValue: expected int64",
    ),
    ({"traceId": "ab", "trace_id": "ab"}, "given twice"),
    ({"events": [], "links": {}}, "spans[0].links: expected an array"),
]


@pytest.mark.parametrize(("span", "reason"), BAD_SPANS, ids=[reason for _, reason in BAD_SPANS])
def test_bad_spans_are_refused_with_their_path(span: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        traces_from_json(document(span))
    assert reason in str(caught.value)
    assert str(caught.value).startswith("resourceSpans[0].scopeSpans[0].spans[0]")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a":1,}', "not JSON"),
        (b'{"a":-0,}', "not JSON"),
        (b'{"a":NaN,}', "not JSON"),
        (b'{"a":"\xff"}', "not JSON"),
        (b'{"a":-0,"b":"\xff"}', "not UTF-8"),
        (b"[]", "expected an object (TracesData), found an array"),
        (b"null", "expected an object (TracesData), found null"),
        (b"[" * 200_000, "nested deeper"),
        (b"[-0," + b"[" * 200_000, "nested deeper"),
        (b'{"resourceSpans":{}}', "resourceSpans: expected an array"),
        (b'{"resourceSpans":[[]]}', "resourceSpans[0]: expected an object (ResourceSpans)"),
        (b'{"a":-0,"b":' + b"9" * 5000 + b"}", "out of range"),
    ],
    ids=lambda text: repr(text[:30]),
)
def test_bad_documents_are_refused(text: bytes, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        traces_from_json(text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "levels"), [("arrayValue", 2), ("kvlistValue", 3)])
def test_nesting_is_taken_as_deep_as_protobuf_parsers_go(kind: str, levels: int) -> None:
    # ResourceSpans, Resource, KeyValue and the outermost AnyValue are four levels.
    deepest = (100 - 4) // levels
    read, _ = traces_from_json(value_document(nested_value(deepest, kind)))
    assert TracesData.FromString(read.SerializeToString()) == read
    assert traces_from_json(traces_to_json(read))[0] == read
    with pytest.raises(InputError, match="nested deeper than protobuf parsers accept"):
        traces_from_json(value_document(nested_value(deepest + 1, kind)))


def test_nesting_limit_matches_the_protobuf_parser() -> None:
    """Whatever is accepted parses, and the first thing refused would not."""
    accepted = []
    for depth in range(45, 55):
        for leaf in ('{"arrayValue":{}}', '{"kvlistValue":{"values":[{}]}}', '{"stringValue":""}'):
            text = value_document(nested_value(depth, "arrayValue").replace("{}", leaf))
            try:
                message, _ = traces_from_json(text)
            except InputError:
                accepted.append(False)
            else:
                accepted.append(True)
                TracesData.FromString(message.SerializeToString())
    assert True in accepted
    assert False in accepted


def test_messages_too_deep_to_write_are_refused() -> None:
    data = TracesData()
    value = data.resource_spans.add().resource.attributes.add(key="k").value
    for _ in range(3000):
        value = value.array_value.values.add()
    with pytest.raises(InputError, match="nested deeper"):
        traces_to_json(data)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "resourceSpans",
                        "scopeSpans",
                        "spans",
                        "resource",
                        "attributes",
                        "key",
                        "value",
                        "traceId",
                        "kind",
                        "status",
                        "code",
                        "name",
                        "stringValue",
                        "intValue",
                        "doubleValue",
                        "arrayValue",
                        "values",
                        "kvlistValue",
                        "bytesValue",
                        "flags",
                        "events",
                        "links",
                        "x",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused_in_one_line(value: Any) -> None:
    wrapped = {"resourceSpans": [{"scopeSpans": [{"spans": [value]}], "resource": value}]}
    for given_value in (value, wrapped):
        try:
            message, _ = traces_from_json(json.dumps(given_value).encode())
        except InputError as error:
            refusal = str(error)
        else:
            refusal = ""
            written = message.SerializeToString(deterministic=True)
            assert TracesData.FromString(written).SerializeToString(deterministic=True) == written
        assert "\n" not in refusal
