"""Cases of messages: fields and their names, unknown and repeated fields, null, types, nesting."""

from __future__ import annotations

import json
from typing import Any

from .case import OTLP, PROTO, PROTOJSON, REJECT, RFC, Group, Outcome, base_span, of_span

JSON = OTLP + "json-protobuf-encoding"
Value = dict[str, Any]


def groups() -> list[Group]:
    """Return the cases."""
    return [_fields(), _names(), _unknown(), _repeated(), _null(), _types(), _nesting()]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _fields() -> Group:
    group = Group("field", PROTO + "trace/v1/trace.proto")
    attribute = {"key": "k", "value": {"stringValue": "v"}}
    fields: dict[str, Value] = {
        "trace state": {"traceState": "a=b,c=d"}, "flags": {"flags": 257},
        "attributes": {"attributes": [attribute]}, "two attributes": {"attributes": [attribute, {
            "key": "l", "value": {"intValue": "1"}}]},
        "dropped counts": {"droppedAttributesCount": 1, "droppedEventsCount": 2,
                           "droppedLinksCount": 3},
        "event": {"events": [{"timeUnixNano": "1700000000000000000", "name": "e",
                              "attributes": [attribute], "droppedAttributesCount": 4}]},
        "link": {"links": [{"traceId": "5b8efff798038103d269b633813fc60c",
                            "spanId": "eee19b7ec3c1b174", "traceState": "a=b", "flags": 1,
                            "attributes": [attribute], "droppedAttributesCount": 5}]},
        "status": {"status": {"message": "m", "code": 2}},
    }  # fmt: skip
    for title, members in fields.items():
        group.span(title, _compact(members)[1:-1], members)
    every: Value = {}
    for members in fields.values():
        every |= members
    group.span("every field", _compact(every)[1:-1], every)
    group.span("every field in reverse", _compact(dict(reversed(every.items())))[1:-1], every)
    group.span("empty lists", '"attributes":[],"events":[],"links":[],"status":{}', {})
    group.span(
        "value ahead of key", '"attributes":[{"value":{"stringValue":"v"},"key":"k"}]',
        {"attributes": [attribute]},
    )  # fmt: skip
    group.span(
        "attribute without a value", '"attributes":[{"key":"k"}]', {"attributes": [{"key": "k"}]}
    )
    group.span(
        "attribute without a key", '"attributes":[{"value":{"intValue":"1"}}]',
        {"attributes": [{"value": {"intValue": "1"}}]},
    )  # fmt: skip
    same = [attribute, {"key": "k", "value": {"stringValue": "w"}}]
    group.span(
        "attributes with the same key", '"attributes":' + _compact(same), {"attributes": same},
        {"attributes": same[:1]}, {"attributes": same[1:]}, REJECT,
        source=PROTO + "common/v1/common.proto",
    )  # fmt: skip
    group.value("value without a member", "{}", {})
    span = base_span("field levels")
    scope = {"name": "n", "version": "1", "attributes": [attribute], "droppedAttributesCount": 1}
    resource = {"attributes": [attribute], "droppedAttributesCount": 2}
    levels = {"resourceSpans": [{
        "resource": resource, "schemaUrl": "https://example.com/r",
        "scopeSpans": [{"scope": scope, "schemaUrl": "https://example.com/s", "spans": [span]}],
    }]}  # fmt: skip
    group.document("resource and scope", _compact(levels), levels)
    many = {"resourceSpans": [
        {"scopeSpans": [{"spans": [base_span(f"{r}{s}{n}") for n in range(2)]} for s in range(2)]}
        for r in range(2)
    ]}  # fmt: skip
    group.document("eight spans in groups", _compact(many), many)
    refs = {"entityRefs": [{"type": "service", "idKeys": ["service.name"]}]}
    text = {"resourceSpans": [{"resource": refs, "scopeSpans": [{"spans": [span]}]}]}
    group.document(
        "entity references", _compact(text), text, of_span(span),
        source=PROTO + "resource/v1/resource.proto",
    )  # fmt: skip
    for title, document in (
        ("empty document", "{}"), ("no resource spans", '{"resourceSpans":[]}'),
        ("empty resource spans", '{"resourceSpans":[{}]}'),
        ("no scope spans", '{"resourceSpans":[{"scopeSpans":[]}]}'),
        ("no spans", '{"resourceSpans":[{"resource":{},"scopeSpans":[{"scope":{},"spans":[]}]}]}'),
    ):  # fmt: skip
        read = json.loads(document)
        group.document(title, document, read, {}, source=OTLP + "empty-telemetry-envelopes")
    return group


def _names() -> Group:
    group = Group("name", JSON)
    for snake, camel, value in (
        ("trace_state", "traceState", '"a=b"'), ("dropped_events_count", "droppedEventsCount", "2"),
        ("dropped_attributes_count", "droppedAttributesCount", "2"),
    ):  # fmt: skip
        group.span(f"original {snake}", f'"{snake}":{value}', {}, {camel: json.loads(value)})
    group.value("original string_value", '{"string_value":"v"}', {}, {"stringValue": "v"})
    span = base_span("original")
    for title, document in (
        ("original resource_spans", {"resource_spans": of_span(span)["resourceSpans"]}),
        ("original scope_spans", {"resourceSpans": [{"scope_spans": [{"spans": [span]}]}]}),
    ):
        group.document(title, _compact(document), {}, of_span(span))
    for key in ("NAME", "Name", "nAme", "name ", "name\\u0000"):
        group.span(f"other case {key}", f'"{key}":"x"', {})
    group.span("escapes in a key", '"n\\u0061me":"x"', {"name": "x"}, without=("name",),
               source=RFC + "8.3")  # fmt: skip
    return group


UNKNOWN_VALUES = {
    "number": "5", "string": '"x"', "bool": "true", "null": "null", "object": '{"a":{"b":[1]}}',
    "array": '[1,{"a":2},[]]', "huge integer": "123456789012345678901234567890",
    "empty object": "{}",
}  # fmt: skip


def _unknown() -> Group:
    group = Group("unknown", JSON)
    for title, text in UNKNOWN_VALUES.items():
        group.span(f"in a span {title}", f'"newer":{text}', {})
    group.span("in a span beyond double", '"newer":1e400', {}, REJECT)
    attribute = '{"key":"k","value":{"stringValue":"v"%s}%s}'
    value = {"attributes": [{"key": "k", "value": {"stringValue": "v"}}]}
    for title, inner, outer in (
        ("in a value", ',"newer":1', ""),
        ("in an attribute", "", ',"newer":{}'),
    ):
        group.span(title, '"attributes":[' + attribute % (inner, outer) + "]", value)
    group.value("value with an unknown member only", '{"newerValue":"x"}', {})
    group.value(
        "in an array", '{"arrayValue":{"values":[{"intValue":"1"}],"newer":1}}',
        {"arrayValue": {"values": [{"intValue": "1"}]}},
    )  # fmt: skip
    group.value(
        "in a key-value list", '{"kvlistValue":{"values":[{"key":"a","newer":1}],"newer":[]}}',
        {"kvlistValue": {"values": [{"key": "a"}]}},
    )  # fmt: skip
    group.span("in a status", '"status":{"code":1,"newer":1}', {"status": {"code": 1}})
    group.span("old status code", '"status":{"deprecatedCode":2,"code":1}', {"status": {"code": 1}})
    group.span("in an event", '"events":[{"name":"e","newer":1}]', {"events": [{"name": "e"}]})
    group.span(
        "in a link", '"links":[{"spanId":"eee19b7ec3c1b174","newer":1}]',
        {"links": [{"spanId": "eee19b7ec3c1b174"}]},
    )  # fmt: skip
    span = base_span("unknown")
    expected = of_span(span)
    for title, document in (
        ("in the document", {"newer": [1], **expected}),
        ("in resource spans", {"resourceSpans": [{"newer": 1, **expected["resourceSpans"][0]}]}),
        ("in a resource", {"resourceSpans": [
            {"resource": {"newer": 1}, **expected["resourceSpans"][0]}]}),
        ("in scope spans", {"resourceSpans": [{"scopeSpans": [{"newer": 1, "spans": [span]}]}]}),
        ("in a scope", {"resourceSpans": [
            {"scopeSpans": [{"scope": {"newer": 1}, "spans": [span]}]}]}),
        ("other signals", {"resourceLogs": [], "resourceMetrics": [{}], **expected}),
        ("partial success", {"partialSuccess": {}, **expected}),
    ):  # fmt: skip
        group.document(title, _compact(document), expected)
    old = {"resourceSpans": [{"instrumentationLibrarySpans": [
        {"instrumentationLibrary": {"name": "n"}, "spans": [span]}]}]}  # fmt: skip
    group.document(
        "spans of instrumentation libraries", _compact(old), {}, expected,
        {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "n"}, "spans": [span]}]}]},
    )  # fmt: skip
    return group


def _repeated() -> Group:
    group = Group("repeated", PROTOJSON + "duplicate-values")
    group.span("string", '"name":"a","name":"b"', {"name": "b"}, REJECT, without=("name",))
    group.span("equal values", '"name":"a","name":"a"', {"name": "a"}, REJECT, without=("name",))
    group.span(
        "escaped key", '"name":"a","n\\u0061me":"b"', {"name": "b"}, REJECT, without=("name",)
    )
    group.span(
        "both spellings", '"traceState":"a=1","trace_state":"b=1"', {"traceState": "b=1"},
        {"traceState": "a=1"}, REJECT, source=JSON,
    )  # fmt: skip
    event = {"name": "b"}
    group.span(
        "list", '"events":[{"name":"a"}],"events":[{"name":"b"}]', {"events": [event]}, REJECT
    )
    group.span(
        "message", '"status":{"code":1},"status":{"code":2}', {"status": {"code": 2}}, REJECT
    )
    group.value(
        "member of a value", '{"stringValue":"a","stringValue":"b"}', {"stringValue": "b"}, REJECT
    )
    group.value(
        "two members of a value", '{"stringValue":"a","intValue":"1"}', {"intValue": "1"},
        {"stringValue": "a"}, REJECT,
    )  # fmt: skip
    group.value("null ahead of a member", '{"stringValue":null,"intValue":"1"}', {"intValue": "1"})
    group.value("null after a member", '{"intValue":"1","stringValue":null}', {"intValue": "1"})
    span = base_span("repeated")
    spans = _compact(of_span(span)["resourceSpans"])
    group.document("resource spans", f'{{"resourceSpans":{spans},"resourceSpans":[]}}', {}, REJECT)
    group.span("in an unknown field", '"newer":{"a":1,"a":2}', {}, REJECT)
    return group


def _null() -> Group:
    group = Group("null", PROTOJSON + "null-values")
    for key in ("traceState", "parentSpanId", "flags", "kind", "attributes", "events", "links",
                "status", "droppedLinksCount"):  # fmt: skip
        group.span(f"field {key}", f'"{key}":null', {})
    for key in ("name", "startTimeUnixNano", "endTimeUnixNano"):
        group.span(f"field {key}", f'"{key}":null', {}, without=(key,))
    for member in ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue",
                   "arrayValue", "kvlistValue"):  # fmt: skip
        group.value(f"member {member}", f'{{"{member}":null}}', {})
    group.span("value", '"attributes":[{"key":"k","value":null}]', {"attributes": [{"key": "k"}]})
    group.span("key", '"attributes":[{"key":null}]', {"attributes": [{}]})
    span = base_span("null")
    expected = of_span(span)
    for title, document in (
        ("resource", {"resourceSpans": [{"resource": None, **expected["resourceSpans"][0]}]}),
        ("scope", {"resourceSpans": [{"scopeSpans": [{"scope": None, "spans": [span]}]}]}),
        ("schema url", {"resourceSpans": [
            {"schemaUrl": None, "scopeSpans": [{"schemaUrl": None, "spans": [span]}]}]}),
    ):  # fmt: skip
        group.document(title, _compact(document), expected)
    for title, document in (
        ("resource spans", {"resourceSpans": None}),
        ("scope spans", {"resourceSpans": [{"scopeSpans": None}]}),
        ("spans", {"resourceSpans": [{"scopeSpans": [{"spans": None}]}]}),
    ):
        group.document(title, _compact(document), {})
    for title, members in (
        ("in attributes", '"attributes":[null]'), ("in events", '"events":[null]'),
        ("in links", '"links":[null]'),
        ("in values", '"attributes":[{"key":"k","value":{"arrayValue":{"values":[null]}}}]'),
    ):  # fmt: skip
        group.span(title, members, REJECT)
    group.document("in spans", '{"resourceSpans":[{"scopeSpans":[{"spans":[null]}]}]}', REJECT)
    group.document("document", "null", {}, REJECT)
    return group


def _types() -> Group:
    group = Group("type", PROTOJSON + "field-representation")
    for title, members in (
        ("object for attributes", '"attributes":{}'),
        ("map for attributes", '"attributes":{"k":"v"}'),
        ("string for events", '"events":"e"'), ("object for links", '"links":{}'),
        ("number in events", '"events":[5]'), ("array in events", '"events":[[]]'),
        ("number for status", '"status":2'), ("string for status", '"status":"STATUS_CODE_OK"'),
        ("array for status", '"status":[]'), ("number for trace state", '"traceState":1'),
        ("number for a key", '"attributes":[{"key":1}]'),
        ("pair for an attribute", '"attributes":[["k","v"]]'),
    ):  # fmt: skip
        group.span(title, members, REJECT)
    for title, text in (
        ("string for a value", '"v"'), ("number for a value", "5"), ("array for a value", "[]"),
        ("array for array value", '{"arrayValue":[]}'),
        ("string for array value", '{"arrayValue":"a"}'),
        ("object for values", '{"arrayValue":{"values":{}}}'),
        ("string in values", '{"arrayValue":{"values":["a"]}}'),
        ("array for key-value list", '{"kvlistValue":[]}'),
        ("map for key-value list", '{"kvlistValue":{"values":{"a":{"intValue":"1"}}}}'),
        ("number in key-value list", '{"kvlistValue":{"values":[5]}}'),
    ):  # fmt: skip
        group.value(title, text, REJECT)
    for title, document in (
        ("object for resource spans", {"resourceSpans": {}}),
        ("string for resource spans", {"resourceSpans": "x"}),
        ("number in resource spans", {"resourceSpans": [5]}),
        ("array in resource spans", {"resourceSpans": [[]]}),
        ("array for a resource", {"resourceSpans": [{"resource": []}]}),
        ("object for scope spans", {"resourceSpans": [{"scopeSpans": {}}]}),
        ("string for a scope", {"resourceSpans": [{"scopeSpans": [{"scope": "n"}]}]}),
        ("object for spans", {"resourceSpans": [{"scopeSpans": [{"spans": {}}]}]}),
        ("array in spans", {"resourceSpans": [{"scopeSpans": [{"spans": [[]]}]}]}),
        ("number for a schema url", {"resourceSpans": [{"schemaUrl": 5}]}),
        ("array", []), ("array of documents", [{"resourceSpans": []}]), ("string", "resourceSpans"),
        ("number", 5), ("bool", True),
    ):  # fmt: skip
        group.document(title, _compact(document), REJECT)
    return group


def _nesting() -> Group:
    group = Group("nesting", PROTO + "common/v1/common.proto")
    item = {"intValue": "1"}
    for title, value in (
        ("array", {"arrayValue": {"values": [item, {"stringValue": "a"}, {"boolValue": True}]}}),
        ("empty array", {"arrayValue": {}}),
        ("array of empty values", {"arrayValue": {"values": [{}]}}),
        ("key-value list", {"kvlistValue": {"values": [{"key": "a", "value": item}]}}),
        ("empty key-value list", {"kvlistValue": {}}),
        ("bytes in an array", {"arrayValue": {"values": [{"bytesValue": "AA=="}]}}),
        ("array in a list in an array", {"arrayValue": {"values": [{"kvlistValue": {"values": [
            {"key": "a", "value": {"arrayValue": {"values": [item]}}}]}}]}}),
    ):  # fmt: skip
        group.value(title, _compact(value), value)
    for depth in (10, 30, 200):
        text, deep = _nested(depth)
        outcomes: tuple[Outcome, ...] = (deep,) if depth <= 30 else (deep, REJECT)
        group.value(f"depth {depth}", text, *outcomes, source=RFC + "9")
    group.span("unknown field 30 deep", '"newer":' + "[" * 30 + "]" * 30, {}, source=JSON)
    group.span("unknown field 2000 deep", '"newer":' + "[" * 2000 + "]" * 2000, {}, REJECT,
               source=RFC + "9")  # fmt: skip
    return group


def _nested(depth: int) -> tuple[str, Value]:
    value: Value = {"intValue": "1"}
    text = _compact(value)
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}
        text = '{"arrayValue":{"values":[' + text + "]}}"
    return text, value
