"""Integers of OTLP/JSON: exact in every notation, and refused if their value is not an integer."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel.core.otlp.json_codec import traces_from_json
from cirron_otel.core.otlp.json_logs import logs_from_json
from cirron_otel.errors import InputError
from tests.kit.examples import examples

from .documents import document, only_value, value_document

_INTERESTING = st.sampled_from([0, 1, 2**53 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 10**18])


@st.composite
def decimals(draw: st.DrawFn) -> str:
    """A number of JSON: an integer near a limit, or any digits, with the point moved."""
    if draw(st.booleans()):
        digits = str(draw(_INTERESTING) + draw(st.integers(-2, 2))).lstrip("-")
    else:
        digits = draw(st.text("0123456789", min_size=1, max_size=25))
    digits = (digits.lstrip("0") or "0") + "0" * draw(st.integers(0, 3))
    at = draw(st.integers(1, len(digits)))
    whole, fraction = digits[:at], digits[at:]
    text = draw(st.sampled_from(["", "-"])) + (whole.lstrip("0") or "0")
    if fraction:
        text += "." + fraction
    if fraction or draw(st.booleans()):
        exponent = len(fraction) + draw(st.sampled_from([0, 0, 0, 1, -1, 2, -30]))
        text += draw(st.sampled_from("eE")) + draw(
            st.sampled_from(["", "+"] if exponent >= 0 else [""])
        )
        text += str(exponent)
    return text


@settings(max_examples=examples(1000), deadline=None)
@given(decimals(), st.booleans())
def test_an_integer_has_the_exact_value_of_its_text(text: str, is_quoted: bool) -> None:
    value = Fraction(text)
    written = json.dumps(text) if is_quoted else text
    try:
        message, _ = traces_from_json(value_document(f'{{"intValue":{written}}}'))
    except InputError:
        assert value.denominator != 1 or not -(2**63) <= value < 2**63
    else:
        assert only_value(message).int_value == value


@settings(max_examples=examples(300), deadline=None)
@given(decimals(), decimals())
def test_doubles_are_the_same_beside_integers_in_another_notation(a: str, b: str) -> None:
    """A document with such an integer goes through another parser."""
    values = f'{{"arrayValue":{{"values":[{{"doubleValue":{a}}},{{"doubleValue":"{b}"}}%s]}}}}'
    numbers = []
    for more in ("", ',{"intValue":1e0}'):
        message, _ = traces_from_json(value_document(values % more))
        items = only_value(message).array_value.values
        numbers.append([repr(item.double_value) for item in items[:2]])
    assert numbers[0] == numbers[1] == [repr(float(a)), repr(float(b))]


@pytest.mark.parametrize("text", ["1e999999999", "1e" + "9" * 50, '"1e999999999"', "1e308"])
def test_huge_exponents_are_refused_without_computing_them(text: str) -> None:
    with pytest.raises(InputError, match=r"out of range|number"):
        traces_from_json(value_document(f'{{"intValue":{text}}}'))


@pytest.mark.parametrize("text", ["1e-999999999", "1e-" + "9" * 50, "1e-400"])
def test_tiny_numbers_are_not_zero(text: str) -> None:
    for written in (text, json.dumps(text)):
        with pytest.raises(InputError, match="expected int64"):
            traces_from_json(value_document(f'{{"intValue":{written}}}'))


@pytest.mark.parametrize(
    "text", ["1e" + "0" * 10**6 + "x", "0" * 10**6 + "x", "1." + "0" * 10**6 + "x"]
)
def test_long_texts_are_refused_in_linear_time(text: str) -> None:
    """Quadratic time would be hours."""
    with pytest.raises(InputError, match="expected int64"):
        traces_from_json(value_document(f'{{"intValue":"{text}"}}'))


def test_leading_zeros_of_an_exponent_do_not_count() -> None:
    for text in ("1e" + "0" * 10**5 + "3", "1e+0003", "1000e" + "0" * 10**5):
        message, _ = traces_from_json(value_document(f'{{"intValue":"{text}"}}'))
        assert only_value(message).int_value == 1000


def test_a_refused_number_is_shown_as_it_is_written() -> None:
    with pytest.raises(InputError, match=r"found the number 9007199254740993\.5$"):
        traces_from_json(value_document('{"intValue":9007199254740993.5}'))


def test_keys_are_checked_and_surrogates_reported_in_any_notation_of_numbers() -> None:
    with pytest.raises(InputError, match="flags: the key occurs twice"):
        traces_from_json(document({"kind": 1}).replace(b'"kind": 1', b'"flags":1e0,"flags":2'))
    half = document({"name": "N"}).replace(b'"N"', rb'"\ud800","flags":1e0')
    _, reports = traces_from_json(half)
    assert reports == ["1 half of a surrogate pair in strings replaced by U+FFFD"]


def test_log_records_have_exact_integers() -> None:
    text = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":%s}]}]}]}'
    message, _ = logs_from_json(text % b"1.7e18")
    record = message.resource_logs[0].scope_logs[0].log_records[0]
    assert record.time_unix_nano == 17 * 10**17
    with pytest.raises(InputError, match="timeUnixNano: expected uint64"):
        logs_from_json(text % b"1.5")
