"""What users can give, and what stands in the batch: as JSON, and never an error."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cirron_otel as ci
from cirron_otel import exactjson
from cirron_otel.core.records.canonical import batch_bytes
from cirron_otel.core.records.check import check_batch
from cirron_otel.sdk.flush.batch_text import Text, batch_text
from cirron_otel.sdk.flush.json_attributes import plain
from cirron_otel.sdk.session.errors import errors
from tests.kit.examples import examples
from tests.sdk.conftest import OpenSession


def sealed(session: OpenSession) -> dict[str, Any]:
    """The batch of one flush as it stands on disk."""
    (batch,) = session.collect().batches
    data = batch.data
    assert check_batch(data) is None
    told = exactjson.loads(data)
    assert batch_bytes(told) == data, "byte for byte what this package writes"
    return told


def only_mark(session: OpenSession) -> dict[str, Any]:
    (mark,) = (m for m in sealed(session)["marks"] if m["name"] != "cirron.overhead_ns")
    return mark


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        (0.5, "float", 0.5),
        (1.0, "float", 1.0),
        (-0.0, "float", -0.0),
        (3, "int", 3),
        (2**70, "int", 2**70),
        (-(2**63) - 1, "int", -(2**63) - 1),
        (True, "bool", True),
        ("text", "string", "text"),
        ("é" * 200, "string", "é" * 128),
        ("\ud800", "string", "\ud800"),
        (np.float32(0.5), "float", 0.5),
        (np.float64(0.5), "float", 0.5),
        (np.int64(7), "int", 7),
        (np.bool_(True), "bool", True),
        (np.array(2.5), "float", 2.5),
        (np.array([2.5]), "float", 2.5),
        (Decimal("0.5"), "float", 0.5),
        (Fraction(1, 2), "float", 0.5),
    ],
)
def test_values_of_marks(session: OpenSession, value: Any, kind: str, told: Any) -> None:
    with ci.scope("step"):
        ci.mark("x", value)
    mark = only_mark(session)
    assert (mark["value_type"], mark["value"]) == (kind, told)
    assert type(mark["value"]) is type(told)
    if isinstance(told, float):
        assert math.copysign(1, mark["value"]) == math.copysign(1, told)


@pytest.mark.parametrize(("value", "told"), [("nan", "nan"), ("inf", "inf"), ("-inf", "-inf")])
def test_values_that_json_has_no_word_for(session: OpenSession, value: str, told: str) -> None:
    with ci.scope("step"):
        ci.mark("x", float(value))
    mark = only_mark(session)
    assert (mark["value"], mark["value_nonfinite"], mark["value_type"]) == (None, told, "float")


@pytest.mark.parametrize("value", [None, [1.0], np.zeros(2), object(), b"x", 1j])
def test_unsupported_mark_values_are_dropped_and_counted(session: OpenSession, value: Any) -> None:
    with ci.scope("step"):
        ci.mark("x", value)
        ci.mark("x", value)
        ci.mark("good", 1)
    assert only_mark(session)["name"] == "good"
    assert errors.counts["mark"] == 2


def test_an_integer_too_long_for_text_is_counted(session: OpenSession) -> None:
    with ci.scope("step"):
        ci.mark("x", 10**50_000)
        ci.mark("good", 1)
    assert only_mark(session)["name"] == "good"
    assert session.collector.marks_lost == 1


@pytest.mark.parametrize(
    ("index", "told", "attrs"),
    [(3, 3, {"global_step": 3}), (None, None, {}), (np.int32(3), 3, {"global_step": 3}),
     ("a", None, {"index": "a"}), (1.5, None, {"index": 1.5})],
)  # fmt: skip
def test_an_index_is_an_integer(session: OpenSession, index: Any, told: Any, attrs: Any) -> None:
    with ci.scope("step", index):
        pass
    (span,) = sealed(session)["spans"]
    assert span["attrs"].pop("cirron.unit_ns") == span["end_ns"] - span["start_ns"]
    assert (span["index"], span["attrs"]) == (told, attrs)


def test_names_and_attributes_that_require_exact_json_are_preserved(session: OpenSession) -> None:
    with ci.scope("a\ud800b", big=2**80, nul="\0"), ci.scope("plain", x=1):
        ci.mark("m\udfff", 1)
    told = sealed(session)
    names = {span["name"]: span["attrs"] for span in told["spans"]}
    assert names == {"a\ud800b": {"big": 2**80, "nul": "\0"}, "plain": {"x": 1}}
    assert {m["name"] for m in told["marks"]} == {"m\udfff", "cirron.overhead_ns"}


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_attributes_become_json() -> None:
    ring: list[Any] = []
    ring.append(ring)
    given_ = {
        "nan": float("nan"), "inf": [float("-inf")], "bytes": b"\0\xff", "set": {1},
        "path": Path("/x"),
        "np": np.float32(0.5), "hostile": Hostile(), "tuple": (1, (2,)), 5: 6, "ring": ring,
    }  # fmt: skip
    told = plain(given_)
    assert told["nan"].lower() == "nan"
    assert told["bytes"] == "AP8="
    assert told["set"] == [1]
    assert told["path"] == "/x"
    assert told["np"] == 0.5
    assert told["tuple"] == [1, [2]]
    assert told["5"] == 6
    assert "Hostile" in told["hostile"]
    json.dumps(told)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=examples(200))
@given(st.dictionaries(st.text(st.characters()), _json), st.text(st.characters()))
def test_whatever_attributes_hold_the_batch_can_be_written(
    attributes: dict[str, Any], name: str
) -> None:
    from cirron_otel.sdk.flush.rows import SpanRow

    row = SpanRow(
        "0" * 32, name, None, None, 1, 2, None, None, None, 1, 1, 0, plain(attributes), []
    )
    spans = Text()
    spans.add([row])
    data = batch_text(spans, Text(), {}, "b" * 32, 1).data
    told = exactjson.loads(data)["spans"][0]
    assert told["name"] == name
    assert set(told["attrs"]) == set(attributes)
    for key, value in attributes.items():
        if isinstance(value, (str, bool, int)):
            assert told["attrs"][key] == value


def test_the_model_and_the_rows_have_the_same_fields() -> None:
    from cirron_otel.core.records.schema import Mark, Span
    from cirron_otel.sdk.flush.rows import MarkRow, SpanRow

    assert SpanRow.__struct_fields__ == Span.__struct_fields__
    assert MarkRow.__struct_fields__ == Mark.__struct_fields__[:-1]


def test_ten_thousand_marks_of_an_open_scope_are_all_named_at_its_end(
    session: OpenSession,
) -> None:
    ids: list[str] = []
    with ci.scope("epoch"):
        for _ in range(10):
            for number in range(1000):
                ci.mark("loss", number)
            _, marks = session.rows()
            ids += [mark.id for mark in marks]
    (span,), _ = session.rows()
    assert span.mark_ids[:-1] == ids
    assert len(set(ids)) == 10_000
