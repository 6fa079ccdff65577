"""Repeated keys in OTLP/JSON: refused with their path, at every level, in every spelling."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.json_codec import traces_from_json, traces_to_json
from cirron_otel.core.otlp.json_logs import logs_from_json
from cirron_otel.errors import InputError
from tests.kit.examples import examples
from tests.kit.generators import otlp_messages as generated

from .documents import (
    document,
    nested_value,
    only_value,
    value_document,
)
from .streams import (
    JSON,
    line,
    names,
    read_until_error,
)

ODD_TEXTS = [
    '":',
    '\\":',
    '"a":1',
    ":",
    " :",
    '\\\\":',
    '{"a":1,"a":2}',
    "\\u003a",
    "\\",
    '"',
    "\n:",
]

Members = list[tuple[str, Any]]


class Object(NamedTuple):
    """A JSON object, which may contain a key twice."""

    members: Members


class Placed(NamedTuple):
    """An object of a document, and the path that leads to it."""

    path: str
    members: Members


def with_members(value: Any) -> Any:
    """Replace each dict in `value` by an `Object`."""
    if isinstance(value, dict):
        return Object([(key, with_members(item)) for key, item in value.items()])
    return [with_members(item) for item in value] if isinstance(value, list) else value


def objects_in(value: Any, path: str = "") -> list[Placed]:
    if isinstance(value, list):
        return [each for n, item in enumerate(value) for each in objects_in(item, f"{path}[{n}]")]
    if not isinstance(value, Object):
        return []
    inner = [
        each for key, item in value.members for each in objects_in(item, path + step(path, key))
    ]
    return [Placed(path, value.members), *inner]


def step(path: str, key: str) -> str:
    """The text of one key in a path."""
    if key.isascii() and key.isidentifier():
        return f".{key}" if path else key
    return f"[{key!a}]"


def snake(key: str) -> str:
    return re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), key)


def text_of(value: Any, rng: Random) -> str:
    """Write `value` with random white space and random escapes."""

    def space() -> str:
        return rng.choice(["", "", "", " ", "\n  ", "\t", "\r\n"])

    if isinstance(value, Object):
        items = [
            f"{space()}{text_of(key, rng)}{space()}:{space()}{text_of(item, rng)}{space()}"
            for key, item in value.members
        ]
        return "{" + (",".join(items) or space()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(space() + text_of(item, rng) + space() for item in value) + "]"
    if isinstance(value, str) and rng.random() < 0.3:
        units = value.encode("utf-16-be").hex()
        units = rng.choice([units, units.upper()])
        return '"' + "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)) + '"'
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


unknown_values = st.recursive(
    st.none() | st.sampled_from(ODD_TEXTS) | st.integers(-5, 5) | st.sampled_from([0.5, -0.0]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*ODD_TEXTS, "a", "service.name", "é"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


def with_unknown_keys(value: Any, unknown: list[Any], rng: Random) -> Any:
    """Add members with unknown keys to some objects of a document, which is returned."""
    for item in unknown:
        members = rng.choice(objects_in(value)).members
        key = f"newer{len(members)}"
        if key not in dict(members):
            members.insert(rng.randint(0, len(members)), (key, with_members(item)))
    return value


documents = st.tuples(generated.traces(), st.lists(unknown_values, max_size=3))
randoms = st.integers(0, 2**32).map(Random)


@settings(max_examples=examples(400), deadline=None)
@given(documents, randoms)
def test_documents_without_a_repeated_key_are_decoded(
    given_document: tuple[TracesData, list[Any]], rng: Random
) -> None:
    message, unknown = given_document
    value = with_unknown_keys(with_members(json.loads(traces_to_json(message))), unknown, rng)
    read, _ = traces_from_json(text_of(value, rng).encode())
    assert read.SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )


@settings(max_examples=examples(600), deadline=None)
@given(documents, randoms, unknown_values)
def test_a_repeated_key_is_refused_with_its_path(
    given_document: tuple[TracesData, list[Any]], rng: Random, other_value: Any
) -> None:
    message, unknown = given_document
    value = with_unknown_keys(with_members(json.loads(traces_to_json(message))), unknown, rng)
    places = [each for each in objects_in(value) if each.members]
    if not places:
        return
    path, members = rng.choice(places)
    key, original = rng.choice(members)
    repeated = rng.choice([original, with_members(other_value)])
    members.insert(rng.randint(0, len(members)), (key, repeated))
    with pytest.raises(InputError) as caught:
        traces_from_json(text_of(value, rng).encode())
    assert str(caught.value).startswith(f"{path}{step(path, key)}: the key occurs twice")


@settings(max_examples=examples(300), deadline=None)
@given(generated.traces(), randoms)
def test_a_field_under_both_spellings_of_its_key_is_refused_with_its_path(
    message: TracesData, rng: Random
) -> None:
    value = with_members(json.loads(traces_to_json(message)))
    places = [
        (path, members, key, item)
        for path, members in objects_in(value)
        for key, item in members
        if snake(key) != key
    ]
    if not places:
        return
    path, members, key, item = rng.choice(places)
    at = rng.randint(0, len(members))
    second = snake(key) if at > members.index((key, item)) else key
    members.insert(at, (snake(key), item))
    with pytest.raises(InputError) as caught:
        traces_from_json(text_of(value, rng).encode())
    of_field = f"{path}{step(path, second)}: the field is given twice"
    of_value = f"{path}: expected one value, found both"  # the members of an AnyValue
    assert str(caught.value).startswith((of_field, of_value))


VALUE = "resourceSpans[0].resource.attributes[0].value"
SPAN = "resourceSpans[0].scopeSpans[0].spans[0]"


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'{"resourceSpans":[{"scopeSpans":[{}]}],"resourceSpans":[]}', "resourceSpans"),
        (b'{"resourceSpans":[],"resource\\u0053pans":[]}', "resourceSpans"),
        (b'{"a":1 , "a"\n:1}', "a"),
        (b'{"":0,"":0}', "['']"),
        (b'{"service.name":0,"service.name":0}', "['service.name']"),
        ('{"é\n":0,"é\n":0}'.replace("\n", "\\n").encode(), "['\\xe9\\n']"),
        (b'{"a":null,"a":null}', "a"),
        (b'{"a":{"b":[0,{"c:d":0,"c\\u003ad":0}]}}', "a.b[1]['c:d']"),
        (b'{"a":"\\u003a","b":1,"b":2}', "b"),
        (b'{"a":"\\u003A:","b":1,"b":2}', "b"),
        (b'{"a":-0,"b":1,"b":2}', "b"),
        (b'{"a":NaN,"b":1,"b":2}', "b"),
        (b'{"a":"\\ud800","b":1,"b":2}', "b"),
        (b'{"a\\\\":1,"a\\u005c":2}', "['a\\\\']"),
        (b'{"\\ud83d\\ude00":1,"\xf0\x9f\x98\x80":2}', "['\\U0001f600']"),
        (value_document('{"stringValue":"a","stringValue":"b"}'), f"{VALUE}.stringValue"),
        (
            document({"name": "n"}).replace(b'"name"', b'"name":"m","name"'),
            f"{SPAN}.name",
        ),
        (
            document({"events": [{}, {"name": "e"}]}).replace(b'"name"', b'"name":"e","name"'),
            f"{SPAN}.events[1].name",
        ),
    ],
    ids=lambda item: item.decode(errors="replace")[:40] if isinstance(item, bytes) else item,
)
def test_repeated_keys_in_a_table(data: bytes, path: str) -> None:
    with pytest.raises(InputError) as caught:
        traces_from_json(data)
    assert str(caught.value) == (
        f"{path}: the key occurs twice in its object, expected once:"
        " remove one, or merge their values"
    )


@pytest.mark.parametrize("depth", [1, 100, 253, 254, 255, 900])
def test_repeated_key_is_detected_at_any_depth_of_an_unknown_value(depth: int) -> None:
    """orjson reads 1,024 levels and writes 254, msgspec nearly 1,000."""
    text = '{"x":' + '{"a":' * depth + "{%s}" + "}" * (depth + 1)
    _, warnings = traces_from_json((text % '"b":1').encode())
    assert warnings == ["unknown key 'x' in TracesData ignored"]
    with pytest.raises(InputError) as caught:
        traces_from_json((text % '"b":1,"b":1').encode())
    path = "x" + ".a" * depth + ".b"
    shown = path if len(path) <= 300 else f"{path[:150]}…{path[-150:]}"
    assert str(caught.value).startswith(f"{shown}: the key occurs twice")


@pytest.mark.parametrize("kind", ["arrayValue", "kvlistValue"])
def test_repeated_key_is_detected_at_any_depth_of_an_attribute_value(kind: str) -> None:
    text = value_document(nested_value(25, kind))
    traces_from_json(text)
    twice = text.replace(b"{}", b'{"boolValue":true,"boolValue":true}')
    with pytest.raises(InputError, match=r"\.boolValue: the key occurs twice"):
        traces_from_json(twice)


def test_values_nested_deeper_than_can_be_written_again_are_refused() -> None:
    for repeat in ("", ',"b":1'):
        text = '{"x":' + '{"a":' * 1015 + '{"b":1' + repeat + "}" * 1017
        with pytest.raises(InputError, match="nested deeper"):
            traces_from_json(text.encode())


def test_a_message_about_a_long_key_is_short() -> None:
    for key in ("k" * 100_000, "\\u0000" * 10_000, "é" * 10_000):
        with pytest.raises(InputError) as caught:
            traces_from_json(f'{{"{key}":1,"{key}":2}}'.encode())
        assert len(str(caught.value)) < 500
        assert "\n" not in str(caught.value)


def test_attributes_with_the_same_key_are_not_a_repeated_key() -> None:
    attributes = [{"key": "k", "value": {"stringValue": text}} for text in ("a", "b")]
    message, warnings = traces_from_json(document({"attributes": attributes}))
    span = message.resource_spans[0].scope_spans[0].spans[0]
    assert [(each.key, each.value.string_value) for each in span.attributes] == [
        ("k", "a"),
        ("k", "b"),
    ]
    assert warnings == []


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("count", [1, 20_000])
def test_colons_and_quotes_in_strings_are_not_taken_for_keys(text: str, count: int) -> None:
    for ensure_ascii in (True, False):
        written = json.dumps({"stringValue": text * count}, ensure_ascii=ensure_ascii)
        for spelled in (written, written.replace(":", "\\u003a").replace("\\u003a", ":", 1)):
            message, _ = traces_from_json(value_document(spelled))
            assert only_value(message).string_value == text * count


def test_null_beside_the_other_spelling_or_member_is_absent() -> None:
    """Some writers give all members of a oneof, and null for those that are not set."""
    message, warnings = traces_from_json(document({"traceId": None, "trace_id": "ab"}))
    assert message.resource_spans[0].scope_spans[0].spans[0].trace_id == b"\xab"
    value, _ = traces_from_json(value_document('{"stringValue":null,"intValue":"1"}'))
    assert only_value(value).int_value == 1
    assert warnings == []


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ('{"stringValue":"a","intValue":"1"}', "stringValue and intValue"),
        ('{"intValue":"1","int_value":"1"}', "intValue and int_value"),
        ('{"arrayValue":{},"kvlistValue":{}}', "arrayValue and kvlistValue"),
    ],
)
def test_a_value_with_two_members_is_refused_with_its_path(value: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        traces_from_json(value_document(value))
    assert str(caught.value) == f"{VALUE}: expected one value, found both {found}"


def test_a_field_under_both_spellings_names_both() -> None:
    with pytest.raises(InputError) as caught:
        traces_from_json(document({"traceId": "ab", "name": "n", "trace_id": "ab"}))
    assert str(caught.value) == (
        f"{SPAN}.trace_id: the field is given twice, as traceId and trace_id, expected once:"
        " remove one"
    )


def test_log_records_with_a_repeated_key_are_refused() -> None:
    good = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"eventName":"a"%s}]}]}]}'
    assert logs_from_json(good % b"")[1] == []
    with pytest.raises(InputError) as caught:
        logs_from_json(good % b',"eventName":"b"')
    assert str(caught.value).startswith("resourceLogs[0].scopeLogs[0].logRecords[0].eventName: ")


def test_a_line_with_a_repeated_key_is_skipped_and_the_others_are_read() -> None:
    bad = line("b").replace(b'"name"', b'"name":"c","name"')
    problems: list[tuple[int, str]] = []
    found, error = read_until_error(
        line("a") + bad + line("d"), JSON, on_error=lambda *problem: problems.append(problem)
    )
    assert (names(found), error) == (["a0", "d0"], "")
    ((number, problem),) = problems
    assert (number, problem.partition(": ")[0]) == (2, f"{SPAN}.name")
    found, error = read_until_error(line("a") + bad + line("d"), JSON)
    assert names(found) == ["a0"]
    assert error.startswith(f"line 2: {SPAN}.name: the key occurs twice")


def test_a_document_over_many_lines_with_a_repeated_key_is_refused() -> None:
    text = json.dumps(json.loads(line("a")), indent=2).encode()
    assert names(read_until_error(text, JSON)[0]) == ["a0"]
    found, error = read_until_error(text.replace(b'"name"', b'"name" : "c",\n"name"'), JSON)
    assert found == []
    assert f"{SPAN}.name: the key occurs twice" in error
