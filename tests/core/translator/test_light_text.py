"""What is kept of attributes, names and statuses is bounded, and worth it."""

from __future__ import annotations

import json
import math
import struct

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from cirron_otel.core.translator.attribute_cache import Pairs
from cirron_otel.core.translator.json_text_cache import Ends, Names
from cirron_otel.core.translator.typed import NotCanonicalError


def pair(key: str, value: str | int) -> bytes:
    told = AnyValue(string_value=value) if isinstance(value, str) else AnyValue(int_value=value)
    return KeyValue(key=key, value=told).SerializeToString()


def test_key_with_many_values_is_not_cached() -> None:
    pairs = Pairs()
    usual = pair("http.request.method", "GET")
    assert pairs[usual] == ("http.request.method", '"http.request.method":"GET"')
    for number in range(100_000, 110_000):
        assert pairs[pair("id", number)] == ("id", f'"id":{number}')
        assert pairs[pair("url", f"/{number}")] == ("url", f'"url":"/{number}"')
    assert usual in pairs
    assert len(pairs) < 300


@pytest.mark.parametrize(
    "values",
    [
        [AnyValue(double_value=number / 7) for number in range(5000)],
        [AnyValue(int_value=-number) for number in range(1, 5000)],
        [AnyValue(int_value=2**40 + number) for number in range(5000)],
    ],
    ids=["doubles", "negative numbers", "large numbers"],
)
def test_key_with_many_long_numbers_is_not_cached(values: list[AnyValue]) -> None:
    pairs, usual = Pairs(), pair("http.request.method", "GET")
    assert pairs[usual][0] == "http.request.method"
    for value in values:
        key, told = pairs[KeyValue(key="k", value=value).SerializeToString()]
        assert json.loads("{" + told + "}") == {key: getattr(value, str(value.WhichOneof("value")))}
    assert usual in pairs
    assert len(pairs) < 100


def test_key_with_values_of_varied_lengths_is_not_cached() -> None:
    pairs, usual = Pairs(), pair("http.request.method", "GET")
    assert pairs[usual][0] == "http.request.method"
    for number in range(5000):
        url = "/" + "item" * (number % 25) + f"/{number}"
        assert pairs[pair("url", url)] == ("url", f'"url":"{url}"')
    assert usual in pairs
    assert len(pairs) < 100


def test_nor_does_it_become_worth_it_when_others_are_forgotten() -> None:
    pairs = Pairs()
    for number in range(20_000):
        key = f"key-{number % 1000}"
        assert pairs[pair(key, number % 3)][0] == key
        url = pair("url", f"/{number}")
        assert pairs[url][0] == "url"
        assert number < 5000 or url not in pairs


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"\x10\x01", "true"),
        (b"\x10\x00", "false"),
        (b"\x21" + struct.pack("<d", 0.1), "0.1"),
        (b"\x21" + struct.pack("<d", -0.0), "-0.0"),
        (b"\x21" + struct.pack("<d", 5e-324), "5e-324"),
        (b"\x21" + struct.pack("<d", 2.0**63), "9.223372036854776e18"),
    ],
)
def test_numbers_of_other_kinds(value: bytes, told: str) -> None:
    assert Pairs()[b"\x0a\x01k\x12" + bytes([len(value)]) + value] == ("k", f'"k":{told}')


@pytest.mark.parametrize(
    "value",
    [
        b"\x10\x02",
        b"\x10\x81\x00",
        b"\x21" + struct.pack("<d", math.inf),
        b"\x21" + struct.pack("<d", -math.inf),
        b"\x21" + struct.pack("<d", math.nan),
        b"\x18\x80\x00",
        b"\x20\x01",
        b"",
    ],
)
def test_non_canonical_attribute_value_is_rejected(value: bytes) -> None:
    with pytest.raises(NotCanonicalError):
        Pairs()[b"\x0a\x01k\x12" + bytes([len(value)]) + value]


def test_no_field_of_otlp_is_left_unread_unseen() -> None:
    """What is new there goes the slow way, but of values, which are looked at by their kind."""
    assert {field.name for field in AnyValue.DESCRIPTOR.fields} == {
        "string_value", "bool_value", "int_value", "double_value", "array_value", "kvlist_value",
        "bytes_value", "string_value_strindex",
    }  # fmt: skip
    assert [field.name for field in ArrayValue.DESCRIPTOR.fields] == ["values"]


def test_pair_cache_is_bounded_and_refilled_after_clearing() -> None:
    """Nor does a key count as one of many values because others were many."""
    pairs, usual, known = Pairs(), pair("http.request.method", "GET"), 0
    for number in range(20_000):
        key = f"key-{number}"
        assert pairs[pair(key, "v")] == (key, f'"{key}":"v"')
        known += usual in pairs
        assert pairs[usual][0] == "http.request.method"
        assert len(pairs) <= 2048
    assert known > 19_900


def test_long_texts_are_not_cached() -> None:
    pairs, names, ends = Pairs(), Names(), Ends()
    for number in range(10):
        text = f"{number}" * 1100
        assert pairs[pair("k", text)] == ("k", f'"k":"{text}"')
        assert names[text.encode()] == f'"{text}"'
        told = ends[0, Span(status=Status(message=text)).SerializeToString()]
        assert json.loads("{" + told[1:] + "}") == {"status": {"message": text}}
    assert not pairs
    assert not names
    assert not ends


def test_names_and_ends_are_bounded() -> None:
    names, ends = Names(), Ends()
    for number in range(5000):
        assert names[b"%d" % number] == f'"{number}"'
        told = f',"kind":{number},"flags":1' if number else ',"flags":1'
        assert ends[number, Span(flags=1).SerializeToString()] == told
    assert max(len(names), len(ends)) <= 2048
    assert ends[0, b""] == ""
    assert ends[2, b"\x7a\x00"] == ',"kind":2,"status":{}'
