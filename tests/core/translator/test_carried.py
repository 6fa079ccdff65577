"""Marks on carriers reach their span again, however the parts of a batch are joined."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from cirron_otel import exactjson
from cirron_otel import semconv as sc
from cirron_otel.core.translator.own.encode import Options, encode_batch
from cirron_otel.core.translator.translate import to_otlp
from cirron_otel.ids import span_id_for
from tests.kit.generators.strategies import cut

from .test_lossless import (
    LAYOUTS,
    PLAN,
    back,
    plan_for,
    split,
    wire,
)
from .test_own import LOWER, batch, span

ODD = "\ud800"
"""An id that is not sayable in OTLP."""
DERIVED = f"{span_id_for(ODD).hex()}{LOWER}"
"""The id that decoding derives for such a span before it applies the rest."""


def mark(number: int | None, span_id: str) -> dict[str, Any]:
    record = {
        "span_id": span_id, "name": "loss", "value_type": "int", "value": 1, "attrs": {},
        "ts_ns": 5, "kind": "point",
    }  # fmt: skip
    return record if number is None else {"id": f"{number:016x}{LOWER}"} | record


def namesakes(span_id: str, name: str) -> dict[str, Any]:
    """A batch whose first span has three marks, and a scope elsewhere that has another one."""
    marks = [mark(number, span_id) for number in (1, 2, 3)]
    first = span(span_id, None, name=name) | {"mark_ids": [each["id"] for each in marks]}
    made = batch([first, span(span_id, None)], [*marks, mark(None, DERIVED), mark(9, "root")])
    del made["otel"]
    return made


def rejoined(pieces: list[ResourceSpans], owners: tuple[int, ...]) -> list[ResourceSpans]:
    """Decode and store the pieces of each owner as a part, and encode the parts again."""
    groups = [
        [piece for piece, each in zip(pieces, owners, strict=True) if each == owner]
        for owner in set(owners)
    ]
    return [message for group in groups for message in of_part(group)]


def of_part(pieces: list[ResourceSpans]) -> list[ResourceSpans]:
    """Decode and store pieces as a part, and encode it again."""
    messages: list[ResourceSpans] = []
    for part in back(pieces):
        stored = exactjson.loads(exactjson.dumps(part.batch))
        messages += wire(to_otlp(stored, plan_for(stored), part.name))
    return messages


SEGMENTED, SESSION = LAYOUTS


@pytest.mark.parametrize(
    ("span_id", "name", "options"),
    [
        pytest.param(ODD, "step", SEGMENTED, id="odd-step-segmented"),
        pytest.param(ODD, "cirron.session", SESSION, id="odd-session-session"),
        pytest.param(DERIVED, "step", SESSION, id="derived-step-session"),
        pytest.param(DERIVED, "cirron.session", SEGMENTED, id="derived-session-segmented"),
        pytest.param("root", "step", SEGMENTED, id="root-step-segmented"),
        pytest.param("root", "cirron.session", SESSION, id="root-session-session"),
    ],
)
def test_parts_of_any_division_are_the_batch_again(
    span_id: str, name: str, options: Options
) -> None:
    """In a part, a carrier may be in another trace than its span.

    The span with the odd id and the scope elsewhere have the same span id.
    """
    made = namesakes(span_id, name)
    with cut({"MAX_EVENTS": 2}):
        messages = wire(encode_batch(made, PLAN, "odd name.json", options))
        pieces = split(messages, 1, random.Random(0))
        assert len(pieces) >= 4
        numbers = range(len(pieces))
        parts = {
            group: of_part([pieces[number] for number in group])
            for size in range(1, len(pieces) + 1)
            for group in combinations(numbers, size)
        }
        for owners in product(range(3), repeat=len(pieces)):
            groups = [tuple(n for n in numbers if owners[n] == each) for each in set(owners)]
            (found,) = back(wire([message for group in groups for message in parts[group]]))
            assert exactjson.equal(found.batch, made), owners


def test_a_carrier_that_arrives_from_two_parts_is_one_carrier() -> None:
    """Each part has placed it in a trace of its own."""
    made = namesakes(ODD, "cirron.session")
    with cut({"MAX_EVENTS": 2}):
        pieces = split(wire(encode_batch(made, PLAN)), 1, random.Random(0))
        names = [piece.scope_spans[0].spans[0].name for piece in pieces]
        carriers = [n for n, each in enumerate(names) if each == sc.MARKS_SPAN]
        others = [n for n, each in enumerate(names) if each != sc.MARKS_SPAN]
        alone = rejoined([pieces[n] for n in carriers], (0,) * len(carriers))
        beside = rejoined(pieces[:-1], (0,) * (len(pieces) - 1))
        (found,) = back([*alone, *beside, *(pieces[n] for n in others)])
    assert found.complete
    assert exactjson.equal(found.batch, made)
