"""The rules of OTLP's JSON encoding: a document is sent to the collector, and what it stored is
compared with the message that the document stands for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.kit.servers.otlp_clients import (
    JSON,
    Said,
    post,
    storing,
)
from tests.kit.servers.serving import Serving

ID = "5B8EFFF798038103D269B633813FC60C"


def document(span: dict[str, Any], **more: Any) -> bytes:
    """A request with one span."""
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span], **more}]}]}).encode()


def valued(**value: Any) -> dict[str, Any]:
    return {"attributes": [{"key": "k", "value": value}]}


def attributed(**value: Any) -> Span:
    return Span(attributes=[KeyValue(key="k", value=AnyValue(**value))])


# the rule, a span of JSON, and the message that it is
RULES: dict[str, tuple[dict[str, Any], Span]] = {
    "ids are hex": (
        {"traceId": ID, "spanId": "eEe19B7EC3C1B174", "parentSpanId": "0102030405060708"},
        Span(
            trace_id=bytes.fromhex(ID),
            span_id=bytes.fromhex("eee19b7ec3c1b174"),
            parent_span_id=bytes.fromhex("0102030405060708"),
        ),
    ),
    "ids of links are hex": (
        {"links": [{"traceId": ID.lower(), "spanId": "eee19b7ec3c1b174"}]},
        Span(
            links=[Span.Link(trace_id=bytes.fromhex(ID), span_id=bytes.fromhex("eee19b7ec3c1b174"))]
        ),
    ),
    "enums are integers": (
        {"kind": 2, "status": {"code": 2}},
        Span(kind=Span.SPAN_KIND_SERVER, status=Status(code=Status.STATUS_CODE_ERROR)),
    ),
    "enums that are not known are kept": ({"kind": 77}, Span(kind=77)),  # type: ignore[arg-type]
    "enum names are taken, too": ({"kind": "SPAN_KIND_SERVER"}, Span(kind=Span.SPAN_KIND_SERVER)),
    "keys are lowerCamelCase": (
        {"droppedAttributesCount": 3, "traceState": "a=b"},
        Span(dropped_attributes_count=3, trace_state="a=b"),
    ),
    "field names are taken, too": (
        {"dropped_attributes_count": 3},
        Span(dropped_attributes_count=3),
    ),
    "64 bits as text": (
        {"startTimeUnixNano": "18446744073709551615", **valued(intValue="-9223372036854775808")},
        Span(start_time_unix_nano=2**64 - 1, attributes=attributed(int_value=-(2**63)).attributes),
    ),
    "64 bits as a number": (
        {"startTimeUnixNano": 2**64 - 1, **valued(intValue=-(2**63))},
        Span(start_time_unix_nano=2**64 - 1, attributes=attributed(int_value=-(2**63)).attributes),
    ),
    "doubles": (valued(doubleValue="-Infinity"), attributed(double_value=float("-inf"))),
    "doubles as integers": (valued(doubleValue=5), attributed(double_value=5.0)),
    "bytes are base64": (valued(bytesValue="+/8="), attributed(bytes_value=b"\xfb\xff")),
    "bytes in base64url, without padding": (
        valued(bytesValue="-_8"),
        attributed(bytes_value=b"\xfb\xff"),
    ),
    "null is an absent field": (
        {"name": None, "events": None, "status": None, "kind": None},
        Span(),
    ),
    "text": ({"name": 'é\0\u2028"'}, Span(name='é\0\u2028"')),
    "unknown fields are ignored": (
        {
            "name": "n",
            "newer": {"a": [1, {"b": None}]},
            "status": {"code": 1, "colour": "red"},
            "events": [{"name": "e", "newer": 1}],
            **valued(stringValue="s", newerValue={"x": 1}),
        },
        Span(
            name="n",
            status=Status(code=1),
            events=[Span.Event(name="e")],  # type: ignore[arg-type]
            attributes=attributed(string_value="s").attributes,
        ),
    ),
}


def test_each_rule(tmp_path: Path) -> None:
    """One collector for all: each span says in its scope which rule it is of."""
    answers = {}
    with storing(tmp_path / "data") as (here, found):
        for rule, (span, _) in RULES.items():
            said = post(here, document(span, scope={"name": rule}), JSON)
            if (said.status, said.body) != (200, b"{}"):
                answers[rule] = said
    warned = answers.pop("unknown fields are ignored")
    assert answers == {}
    assert_warns_of("newer", warned)
    stored = {scope.scope.name: scope.spans[0] for each in found for scope in each.scope_spans}
    assert stored == {rule: message for rule, (_, message) in RULES.items()}


def assert_warns_of(key: str, said: Said) -> None:
    """A success that rejects nothing, and names the key ("Partial Success", warnings)."""
    assert (said.status, said.kind) == (200, JSON)
    told = json.loads(said.body)
    assert set(told) == {"partialSuccess"}
    assert set(told["partialSuccess"]) == {"errorMessage"}
    assert key in told["partialSuccess"]["errorMessage"]


@pytest.mark.parametrize("place", ["request", "resourceSpans", "resource", "scopeSpans", "scope"])
def test_unknown_fields_are_ignored_at_every_level(collector: Serving, place: str) -> None:
    scope: dict[str, Any] = {"name": os.urandom(8).hex()}
    scopes = {"scope": scope, "spans": [{"name": "s"}]}
    resource: dict[str, Any] = {"attributes": []}
    whole = {"resource": resource, "scopeSpans": [scopes]}
    request: dict[str, Any] = {"resourceSpans": [whole]}
    places = {
        "request": request,
        "resourceSpans": whole,
        "resource": resource,
        "scopeSpans": scopes,
        "scope": scope,
    }
    places[place]["newer"] = {"anything": [1]}
    assert_warns_of("newer", post(collector, json.dumps(request).encode(), JSON))


BAD: dict[str, dict[str, Any]] = {
    "base64 id": {"traceId": "W47/95gDgQPSabYzgT/GDA=="},
    "odd hex": {"spanId": "abc"},
    "enum name that is none": {"kind": "SERVER"},
    "64 bits and one": {"startTimeUnixNano": "18446744073709551616"},
    "fraction": valued(intValue=1.5),
    "two values": valued(intValue=1, stringValue="a"),
    "text for a list": {"events": "none"},
}


@pytest.mark.parametrize("span", BAD.values(), ids=BAD)
def test_error_message_starts_with_the_path_of_the_invalid_span(
    collector: Serving, span: dict[str, Any]
) -> None:
    said = post(collector, document(span), JSON)
    assert (said.status, said.kind) == (400, JSON)
    assert said.error.message.startswith("resourceSpans[0].scopeSpans[0].spans[0]")


REPEATED: dict[str, tuple[str, bytes, str]] = {
    "at the top": (
        "traces",
        b'{"resourceSpans":[{"scopeSpans":[{}]}],"resourceSpans":[]}',
        "resourceSpans",
    ),
    "in a span, with an escape": (
        "traces",
        document({"name": "n", "kind": 1}).replace(b'"kind"', b'"n\\u0061me" '),
        "resourceSpans[0].scopeSpans[0].spans[0].name",
    ),
    "in an unknown field": (
        "traces",
        document({"newer": {"a": [1]}}).replace(b'"a"', b'"a":0,"a"'),
        "resourceSpans[0].scopeSpans[0].spans[0].newer.a",
    ),
    "in logs": (
        "logs",
        b'{"resourceLogs":[{"scopeLogs":[],"scopeLogs":[]}]}',
        "resourceLogs[0].scopeLogs",
    ),
    "in metrics": ("metrics", b'{"resourceMetrics":[{}],"resourceMetrics":[]}', "resourceMetrics"),
}


@pytest.mark.parametrize(("signal", "body", "path"), REPEATED.values(), ids=REPEATED)
def test_a_repeated_key_is_refused_with_its_path(
    small: Serving, signal: str, body: bytes, path: str
) -> None:
    said = post(small, body, JSON, f"/v1/{signal}")
    assert (said.status, said.kind) == (400, JSON)
    assert said.error.message.startswith(f"{path}: the key occurs twice")


def test_a_field_under_both_spellings_is_refused_with_its_path(collector: Serving) -> None:
    said = post(collector, document({"traceId": ID, "trace_id": ID}), JSON)
    assert (said.status, said.kind) == (400, JSON)
    assert said.error.message.startswith("resourceSpans[0].scopeSpans[0].spans[0].trace_id: ")


def test_attributes_with_the_same_key_are_preserved(tmp_path: Path) -> None:
    attributes = [*valued(stringValue="a")["attributes"], *valued(stringValue="b")["attributes"]]
    with storing(tmp_path / "data") as (here, found):
        said = post(here, document({"attributes": attributes}), JSON)
    assert (said.status, said.body) == (200, b"{}")
    kept = found[0].scope_spans[0].spans[0].attributes
    assert [(each.key, each.value.string_value) for each in kept] == [("k", "a"), ("k", "b")]


def test_byte_order_mark_is_refused_as_invalid_json(collector: Serving) -> None:
    """RFC 8259, section 8.1, lets receivers refuse it; they must not guess."""
    assert post(collector, b"\xef\xbb\xbf" + document({}), JSON).status == 400


def test_half_of_a_surrogate_pair_is_replaced_and_reported(tmp_path: Path) -> None:
    """One such text costs neither its span nor the others in the request."""
    scope = {"spans": [{"name": "good"}, {"name": "a\ud800b", **valued(stringValue="\udc00")}]}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}).encode()
    with storing(tmp_path / "data") as (here, found):
        said = post(here, body, JSON)
    assert said.status == 200
    assert "2 halves of surrogate pairs" in json.loads(said.body)["partialSuccess"]["errorMessage"]
    good, replaced = found[0].scope_spans[0].spans
    assert (good.name, replaced.name) == ("good", "a\ufffdb")
    assert replaced.attributes[0].value.string_value == "\ufffd"
