"""What counts as a batch; the cheap answer and the thorough one agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel import exactjson
from cirron_otel.core.records import check
from cirron_otel.core.records.check import check_batch, check_value_of
from tests.kit.examples import examples
from tests.kit.spools.mutations import batches
from tests.kit.spools.recorded import ALL_BATCHES

MINIMAL = b'{"schema_version":1}'


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (MINIMAL, None),
        (b' {"schema_version" : 1, "spans" : [ ]}\n', None),
        (b'{"schema_version":1,"spans":[NaN,1e400,-0,{"a":1,"a":2}],"new":{"a":[]}}', None),
        (b'{"schema_version":1,"spans":[5,null,"x"]}', None),
        (b'{"schema_version":1,"marks":["\\ud800"]}', None),
        (b'{"schema_version":1,"x":' + b"[" * 200 + b"]" * 200 + b"}", None),
        (b"", "not-json"),
        (b"{", "not-json"),
        (MINIMAL + b"x", "not-json"),
        (b"\xef\xbb\xbf" + MINIMAL, "not-json"),
        (b'{"schema_version":1,"x":"\xff"}', "not-json"),
        (b'{"schema_version":1,"\xff":1}', "not-json"),
        (b"\x1f\x8b\x08\x00\x00\x00", "not-json"),
        (b"\0" * 100, "not-json"),
        (b'{"schema_version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not-json"),
        (b"[]", "not-batch"),
        (b"null", "not-batch"),
        (b"1e400", "not-batch"),
        (b"{}", "not-batch"),
        (b'{"resourceSpans":[]}', "not-batch"),
        (b'{"schema_version":1,"spans":{}}', "not-batch"),
        (b'{"schema_version":1,"marks":null}', "not-batch"),
        (b'{"schema_version":1,"snapshots":"x"}', "not-batch"),
        (b'{"schema_version":2}', "schema-version"),
        (b'{"schema_version":1.0}', "schema-version"),
        (b'{"schema_version":"1"}', "schema-version"),
        (b'{"schema_version":true}', "schema-version"),
        (b'{"schema_version":1,"spans":[],"spans":[]}', "repeated-key"),
        (b'{"schema_version":1,"schema_version":1}', "repeated-key"),
    ],
)
def test_valid_and_invalid_batches_are_classified(data: bytes, code: str | None) -> None:
    problem = check_batch(data)
    assert (problem and problem.code) == code
    assert check_value_of(data) == problem


@pytest.mark.parametrize("path", ALL_BATCHES, ids=lambda path: path.name)
def test_recorded_batches_are_batches(path: Path) -> None:
    assert check_batch(path.read_bytes()) is None
    # msgspec refuses halves of surrogate pairs.
    assert is_cheap(path.read_bytes()) == ("17_lone_surrogates" not in str(path))


def is_cheap(data: bytes) -> bool:
    """Whether the cheap way knows the answer."""
    return check._is_plainly_batch(data)


@pytest.mark.parametrize(
    ("data", "cheap"),
    [
        (MINIMAL, True),
        (MINIMAL + b"\n", True),
        ('{"schema_version":1,"spans":[{"id":"é"}],"é":[]}'.encode(), True),
        (b'{"schema_version": 1}', False),
        (b'{"schema_version":1,"spans":[],"spans":[]}', False),
        (b'{"schema_version":1,"sp\\u0061ns":[]}', False),
        (b'{"schema_version":1,"x":"\xff"}', False),
        (b'{"schema_version":1,"spans":{}}', False),
        (b'{"schema_version":10}', False),
        (b"{}", False),
        (b"[]", False),
    ],
)
def test_when_the_answer_is_cheap(data: bytes, cheap: bool) -> None:
    assert is_cheap(data) == cheap


@settings(max_examples=examples(1500), deadline=None)
@given(batches(), st.sampled_from([exactjson.dumps, lambda v: exactjson.dumps_ascii(v).encode()]))
def test_the_cheap_answer_is_the_thorough_one(batch: object, dump: object) -> None:
    data = dump(batch)  # type: ignore[operator]
    assert check_batch(data) == check_value_of(data)


@settings(max_examples=examples(3000), deadline=None)
@given(st.data())
def test_broken_bytes_get_the_thorough_answer(data: st.DataObject) -> None:
    """A byte changed, taken out or put in anywhere: never taken for better than it is."""
    text = bytearray(data.draw(st.sampled_from(SHORT)))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        piece = data.draw(
            st.sampled_from([b"", b'"', b",", b"]", b"\\", b"\xff", b"0", b"\n", b"e"])
        )
        text[place : place + data.draw(st.integers(0, 2))] = piece
    changed = bytes(text)
    assert check_batch(changed) == check_value_of(changed)


SHORT = [
    json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    for value in (
        {"schema_version": 1, "spans": [{"id": "é", "x": 1.5e3}], "marks": [], "a": [True, None]},
        {"schema_version": 1, "spans": [], "marks": [{"a\n": -0.25, "b": {"c": "\\"}}]},
    )
]
