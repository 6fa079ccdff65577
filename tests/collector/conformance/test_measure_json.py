"""What JSON may hold before it is parsed: counted in the text, whatever stands in strings."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel.collector.receiver.measure import TooManyElementsError, measure
from cirron_otel.collector.receiver.reading import check_json
from cirron_otel.core.otlp.json_codec import traces_from_json, traces_to_json
from tests.kit.examples import examples
from tests.kit.generators import otlp_messages as generated

MOST = 20_000
MANY = 1_000_000

# what would become millions of objects, and the bytes that each is repeated as
TOO_MUCH: dict[str, bytes] = {
    "objects": b'{"resourceSpans":[' + b"{}," * MANY + b"{}]}",
    "lists": b"[" + b"[]," * 4 * MANY + b"[]]",
    "numbers": b"[" + b"1," * 4 * MANY + b"1]",
    "texts": b"[" + b'"",' * 4 * MANY + b'""]',
    "keys": b"{" + b'"":0,' * 4 * MANY + b'"":0}',
    "depth": b"[" * 4 * MANY,
    "behind a text with a quote": b'["\\"",' + b"{}," * MANY + b"{}]",
    "behind a text without an end": b"{" * MANY + b'"abc',
}


@pytest.mark.parametrize("body", TOO_MUCH.values(), ids=TOO_MUCH)
def test_too_many_json_values_are_refused_within_bounded_memory(body: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(TooManyElementsError, match="more values than 20000 elements"):
        check_json(body, MOST)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * 1024 * 1024


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"x": "' + b"{[,:" * MANY + b'"}',
        b'{"x": "' + b'\\"{,' * MANY + b'"}',
        b'"' + b"{" * MANY,
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b"{}," * 19_990 + b"{}]}]}]}",
    ],
    ids=["nothing", "empty", "in a text", "behind quotes in a text", "no end", "as many as may be"],
)
def test_brackets_inside_strings_do_not_count_as_values(body: bytes) -> None:
    check_json(body, MOST)


@settings(max_examples=examples(200), deadline=None)
@given(generated.traces())
def test_messages_within_the_protobuf_limit_are_accepted_as_json(message: Any) -> None:
    """With the same number of elements as the limit: what is in an element is within its share."""
    elements = measure(message.SerializeToString(), max_elements=1_000_000).elements
    text = traces_to_json(message)
    check_json(text, max(elements, 2))
    traces_from_json(text)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
    ),
    st.integers(0, 6),
)
def test_accepted_json_stays_within_the_object_and_value_limits(value: Any, most: int) -> None:
    try:
        check_json(json.dumps(value).encode(), most)
    except TooManyElementsError:
        assert _objects(value) > 3 * most + 1 or _values(value) > 16 * most + 1
    else:
        assert _objects(value) <= 3 * most + 1
        assert _values(value) <= 16 * most + 1


def test_strings_longer_than_one_scan_chunk_are_not_counted() -> None:
    texts = b'"' + b'{,\\"' * 500_000 + b'"'
    within = b"[" + (texts + b",{},") * 3 + b"1]"
    check_json(within, 2)
    with pytest.raises(TooManyElementsError):
        check_json(within, 0)


def _objects(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict) + sum(map(_objects, inner))


def _values(value: Any) -> int:
    """Brackets and commas."""
    if not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(len(value) - 1, 0) + sum(map(_values, inner))
