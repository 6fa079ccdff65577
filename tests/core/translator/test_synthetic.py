"""Synthetic spans have a length: backends take one without for a broken span.

Jaeger 2.13 would move its end and add a warning to its attributes; tests/system/backends/
test_end_to_end.py shows that the real one warns of none.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from cirron_otel import exactjson
from cirron_otel import semconv as sc
from cirron_otel.core.translator.own.encode import Options, encode_batch
from cirron_otel.core.translator.own.fast_decode import fast_decode
from cirron_otel.core.translator.own.fast_encode import fast_encode, typed_batch
from cirron_otel.core.translator.own.own import plan_of
from cirron_otel.core.translator.own.synthetic import is_synthetic
from cirron_otel.core.translator.translate import FromOtlp, encode_foreign, to_otlp

from .test_lossless import (
    LAYOUTS,
    PLAN,
    back,
    wire,
)
from .test_own import (
    EPOCH,
    LOWER,
    SEGMENT,
    SESSION,
    STEP,
    batch,
    exactly,
    span,
    spans_of,
)

KINDS = {"cirron.marks", "cirron.continuation", "cirron.segment", "cirron.running"}


def mark(time: int, number: int = 1) -> dict[str, Any]:
    """A mark of an epoch that is in no batch here."""
    return {
        "id": f"{number:016x}{LOWER}", "span_id": EPOCH, "name": "loss", "value_type": "int",
        "value": 1, "attrs": {}, "ts_ns": time, "kind": "point",
    }  # fmt: skip


def made_at(start: int, mark_times: tuple[int, ...] = (5,)) -> dict[str, Any]:
    """A batch with every kind of synthetic span but `cirron.batch`, at one time."""
    segment = {
        "number": 1, "trace_id": SEGMENT, "previous_trace_id": SESSION, "start_ns": start,
        "unit_id": f"{9:016x}{LOWER}", "parent_id": EPOCH, "parent_trace_id": SESSION,
    }  # fmt: skip
    running = {"id": EPOCH, "name": "epoch", "index": 0, "start_ns": start, "parent_id": SESSION}
    marks = [mark(time, number) for number, time in enumerate(mark_times, 1)]
    return batch([span(STEP, EPOCH)], marks, segments=[segment], running=[running])


def synthetic_of(made: dict[str, Any]) -> list[Span]:
    return [each for each in spans_of(made) if is_synthetic(each)]


def times(each: Span) -> tuple[int, int]:
    return each.start_time_unix_nano, each.end_time_unix_nano


@pytest.mark.parametrize("start", [0, 1, 5, 2**63 - 2, 2**63, 2**64 - 2])
def test_every_kind_ends_after_its_start(start: int) -> None:
    found = synthetic_of(made_at(start))
    assert {each.name for each in found} == KINDS
    for each in found:
        when = 5 if each.name == "cirron.marks" else start
        assert times(each) == (when, when + 1)


@pytest.mark.parametrize("start", [2**63 - 1, 2**64 - 1])
def test_spans_at_the_latest_time_have_zero_length(start: int) -> None:
    found = synthetic_of(made_at(start))
    assert {each.name for each in found} == KINDS
    assert {times(each) for each in found if each.name != "cirron.marks"} == {(start, start)}


@pytest.mark.parametrize(
    ("of_marks", "expected"),
    [
        ((5,), (5, 6)),
        ((5, 5), (5, 6)),
        ((5, 6), (5, 6)),
        ((5, 9), (5, 9)),
        ((0,), (0, 1)),
        ((2**63 - 2,), (2**63 - 2, 2**63 - 1)),
        ((2**63 - 1,), (2**63 - 1, 2**63 - 1)),
        ((-3,), (0, 1)),
    ],
)
def test_carrier_covers_the_times_of_its_marks(
    of_marks: tuple[int, ...], expected: tuple[int, int]
) -> None:
    (carrier, *_) = synthetic_of(made_at(5, of_marks))
    assert carrier.name == "cirron.marks"
    assert times(carrier) == expected


@pytest.mark.parametrize(
    ("options", "start"), list(product(LAYOUTS, [0, 5, 2**63 - 1, 2**64 - 1])), ids=str
)
def test_fast_encoder_and_decoder_match_the_exact_ones(options: Options, start: int) -> None:
    made = made_at(start)
    data = exactly(made, options)
    plan = plan_of(made)
    assert plan is not None
    assert fast_encode(typed_batch(exactjson.dumps(made)), plan, None, options) == data
    assert exactjson.equal(exactjson.loads(fast_decode(data).data), made)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_zero_length_span_is_foreign_and_returned_unchanged(name: str) -> None:
    made = made_at(5)
    (message,) = wire(to_otlp(made, plan_of(made)))
    (scoped,) = message.scope_spans
    for each in scoped.spans:
        if each.name == name:
            each.end_time_unix_nano = each.start_time_unix_nano
    changed = [each for each in scoped.spans if each.name == name]
    reader = FromOtlp()
    found = reader.feed([message]) + reader.finish()
    ours, foreign = sorted(found, key=lambda each: "resource_spans" in each.batch["otel"])
    if name == "cirron.marks":
        assert ours.batch["otel"]["part"]["marks"] == 1
        assert (ours.batch["spans"], ours.batch["marks"]) == (made["spans"], [])
    else:  # the batch says itself what these stand for
        assert exactjson.equal(ours.batch, made)
    (again,) = encode_foreign(foreign.batch) or ()
    assert list(again.scope_spans[0].spans) == changed
    assert again.resource == message.resource
    assert again.scope_spans[0].scope == scoped.scope


def test_a_scope_of_no_length_keeps_its_times() -> None:
    made = batch([span(STEP, EPOCH, start_ns=20, end_ns=20)])
    assert [times(each) for each in spans_of(made)] == [(20, 20)]


def test_a_session_that_has_just_begun_adds_no_root() -> None:
    """Its first batch shows it as open, and nothing else: all else would hide the root to come."""
    running = {"id": SESSION, "name": "cirron.session", "index": None, "start_ns": 5}
    made = batch([], [], running=[running | {"parent_id": None}])
    (marker,) = spans_of(made)
    assert marker.name == "cirron.running"
    assert marker.parent_span_id == bytes.fromhex(SESSION)[:8]
    message = to_otlp(made, plan_of(made), None, Options())
    (decoded,) = FromOtlp().feed(message)
    assert decoded.complete
    assert exactjson.equal(decoded.batch, made)


@pytest.mark.parametrize("index", [None, 3])
def test_a_marker_in_a_part_of_a_batch_that_names_no_session(index: int | None) -> None:
    """No encoder of ours writes it there. It comes back like a seam, and the batch is one again."""
    running = {"id": EPOCH, "name": "epoch", "index": index, "start_ns": 5, "parent_id": SESSION}
    (marker,) = synthetic_of(batch([], [], running=[running]))
    made = batch([span(STEP, EPOCH), span(EPOCH, None)])
    del made["otel"]
    (message,) = encode_batch(made, PLAN)
    (scoped,) = message.scope_spans
    for pair in scoped.scope.attributes:
        if pair.key == sc.BATCH_SYNTHETIC:
            pair.value.int_value = 1
    scoped.spans.append(marker)
    (whole,) = back([message])
    assert exactjson.equal(whole.batch, made)
    late = ResourceSpans.FromString(message.SerializeToString())
    del late.scope_spans[0].spans[1:]
    del scoped.spans[0]
    (part,) = back([message])
    assert not part.complete
    (again,) = wire(encode_batch(part.batch, PLAN, part.name))
    assert marker in again.scope_spans[0].spans
    (joined,) = back([again, late])
    assert exactjson.equal(joined.batch, made)


def test_a_negative_number_of_carried_marks_is_not_ours() -> None:
    made = batch([span(STEP, EPOCH)])
    (message,) = wire(to_otlp(made, plan_of(made)))
    (each,) = message.scope_spans[0].spans
    each.attributes.add(key=sc.MORE_MARKS).value.int_value = -1
    (found,) = back([message])
    assert encode_foreign(found.batch) == [message], "the attribute is not lost"
