"""Nothing is lost: both directions, over generated batches and generated messages."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel import exactjson
from cirron_otel.core.placement.batch_placement import Plan
from cirron_otel.core.translator.header import LISTS
from cirron_otel.core.translator.own.batch_fields import file_name
from cirron_otel.core.translator.own.encode import Options, encode_batch
from cirron_otel.core.translator.own.own import plan_of
from cirron_otel.core.translator.own.parts import whole_of
from cirron_otel.core.translator.translate import FromOtlp, encode_foreign, to_otlp
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
PLAN = Plan(gen.SESSION_ID)


def plan_for(batch: Any) -> Plan:
    """What a batch says of itself if it names its session; else what all others get here."""
    return plan_of(batch) or PLAN


LAYOUTS = [Options(layout="segmented"), Options(layout="session")]


def wire(messages: list[ResourceSpans]) -> list[ResourceSpans]:
    """The messages as they come out of a file: serialised and parsed again."""
    data = TracesData(resource_spans=messages).SerializeToString()
    return list(TracesData.FromString(data).resource_spans)


def split(messages: list[ResourceSpans], size: int, shuffler: random.Random) -> list[ResourceSpans]:
    """What a batch processor may make of messages: pieces of `size` spans, in any order."""
    pieces = []
    for message in messages:
        for scope_spans in message.scope_spans:
            spans = list(scope_spans.spans)
            shuffler.shuffle(spans)
            for start in range(0, len(spans), size):
                piece = ResourceSpans()
                piece.CopyFrom(message)
                del piece.scope_spans[:]
                part = piece.scope_spans.add()
                part.CopyFrom(scope_spans)
                del part.spans[:]
                part.spans.extend(spans[start : start + size])
                for span in part.spans:
                    span.status.SetInParent()  # as a collector does
                pieces.append(piece)
    shuffler.shuffle(pieces)
    return pieces


def back(pieces: list[ResourceSpans]) -> list[Any]:
    reader = FromOtlp()
    found = [decoded for piece in pieces for decoded in reader.feed([piece])]
    return found + reader.finish()


def texts(messages: list[ResourceSpans]) -> list[bytes]:
    return [message.SerializeToString() for message in messages]


BATCHES = gen.batches | gen.crowded_batches() | gen.crowded_batches()
NAMES = st.none() | st.just("odd name.json")
SHUFFLERS = st.randoms(use_true_random=False)


@pytest.mark.parametrize("options", LAYOUTS, ids=lambda o: o.layout)
@settings(max_examples=examples(1100), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(batch=BATCHES, name=NAMES, limits=gen.limits, plan=gen.plans())
def test_batch_to_otlp_and_back(
    options: Options, batch: Any, name: str | None, limits: Any, plan: Plan
) -> None:
    before = gen.copy_of(batch)
    with gen.cut(limits):
        messages = wire(to_otlp(batch, plan_of(batch) or plan, name, options))
        assert exactjson.equal(batch, before), "the input was changed"
        reader = FromOtlp()
        (decoded,) = reader.feed(messages)
    assert reader.finish() == []
    assert exactjson.equal(decoded.batch, batch)
    assert name is None or decoded.name == name
    assert decoded.complete


@settings(max_examples=examples(500), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(
    batch=BATCHES, size=st.integers(1, 3), shuffler=SHUFFLERS, limits=gen.limits, plan=gen.plans()
)
def test_batch_through_a_splitting_collector(
    batch: Any, size: int, shuffler: random.Random, limits: Any, plan: Plan
) -> None:
    with gen.cut(limits):
        messages = wire(encode_batch(batch, plan_of(batch) or plan))
        (decoded,) = back(split(messages, size, shuffler))
    assert exactjson.equal(decoded.batch, batch)
    assert decoded.complete


@settings(max_examples=examples(350), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(batch=BATCHES, shuffler=SHUFFLERS, limits=gen.limits)
def test_everything_twice_counts_once(batch: Any, shuffler: random.Random, limits: Any) -> None:
    with gen.cut(limits):
        pieces = split(wire(encode_batch(batch, plan_for(batch))), 1, shuffler)
        twice = pieces + [ResourceSpans.FromString(p.SerializeToString()) for p in pieces]
        (decoded,) = back(twice)
        assert exactjson.equal(decoded.batch, batch)
        shuffler.shuffle(twice)
        (decoded,) = back(twice)
        assert exactjson.equal(decoded.batch, batch)


@settings(max_examples=examples(350), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(batch=BATCHES, shuffler=SHUFFLERS, data=st.data(), limits=gen.limits)
def test_partial_batch_round_trips_unchanged(
    batch: Any, shuffler: random.Random, data: st.DataObject, limits: Any
) -> None:
    with gen.cut(limits):
        pieces = split(wire(encode_batch(batch, plan_for(batch))), 1, shuffler)
        lost = data.draw(st.integers(0, len(pieces) - 1))
        kept = pieces[:lost] + pieces[lost + 1 :]
        found = back(kept)
        if not kept:
            assert found == []
            return
        (decoded,) = found
        if decoded.complete:
            assert exactjson.equal(decoded.batch, batch)
            return
        assert decoded.batch["batch_id"] != batch.get("batch_id")
        (again,) = back(wire(to_otlp(decoded.batch, plan_for(decoded.batch), decoded.name)))
    assert exactjson.equal(again.batch, decoded.batch)
    assert again.name == decoded.name


@settings(max_examples=examples(300), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(batch=gen.crafted_parts(), limits=gen.limits, name=NAMES)
def test_batch_resembling_a_part_round_trips(batch: Any, limits: Any, name: str | None) -> None:
    with gen.cut(limits):
        (decoded,) = back(wire(to_otlp(batch, plan_for(batch), name)))
    assert exactjson.equal(decoded.batch, batch)
    assert name is None or decoded.name == name


def is_empty_part(batch: Any) -> bool:
    """Whether this is a part of a batch without any record."""
    return whole_of(batch)[1] is not None and not any(batch[key] for key in LISTS)


PART_OF_ITS_OWN = {
    "schema_version": 1, "sdk_version": "0.3.0", "batch_id": "c" * 32, "created_ns": 7,
    "spans": [], "marks": [],
    "snapshots": [
        {
            "id": "c8".zfill(16) + gen.SESSION_ID[16:],
            "span_id": "1".zfill(16) + gen.SESSION_ID[16:],
            "tensor_name": "w", "shape": [2], "dtype": "f", "mode": "full", "stats": None,
            "blob_uri": None, "ts_ns": 0, "attrs": {},
        }
    ],
    "otel": {"part": None, "resource": {"attributes": {}}},
}  # fmt: skip
"""A batch with a member that parts have, ahead of another member."""


@settings(max_examples=examples(450), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@example(
    batch=PART_OF_ITS_OWN,
    shuffler=random.Random(0),
    owners=[{0, 1}, {0, 2}],
    limits={},
    plan=Plan(gen.SESSION_ID, segments={gen.SESSION_ID: []}),
    options=Options(layout="segmented"),
)
@given(
    batch=BATCHES,
    shuffler=SHUFFLERS,
    owners=st.lists(st.sets(st.integers(0, 2), min_size=1, max_size=2), min_size=1, max_size=20),
    limits=gen.limits,
    plan=gen.plans(),
    options=st.sampled_from(LAYOUTS),
)
def test_parts_converted_alone_and_joined_later_are_the_batch(
    batch: Any,
    shuffler: random.Random,
    owners: list[set[int]],
    limits: Any,
    plan: Plan,
    options: Options,
) -> None:
    # A batch without a name of its own is named after its content once it is complete.
    name = None if file_name(batch) else "odd name.json"
    with gen.cut(limits):
        messages = wire(encode_batch(batch, plan_of(batch) or plan, name, options))
        groups: list[list[ResourceSpans]] = [[], [], []]
        for number, piece in enumerate(split(messages, 1, shuffler)):
            for owner in owners[number % len(owners)]:
                groups[owner].append(piece)
        joined = []
        for part in (decoded for group in groups for decoded in back(group)):
            stored = exactjson.loads(exactjson.dumps(part.batch))
            assert exactjson.equal(stored, part.batch)
            joined += split(wire(to_otlp(stored, plan_for(stored), part.name)), 1, shuffler)
        shuffler.shuffle(joined)
        found = back(joined)
    # A part beside the complete batch is a copy under another key: it is reported, nothing is lost.
    # A part of seams alone has no record to encode: it comes back as the batch that was stored.
    (decoded,) = [each for each in found if each.complete and not is_empty_part(each.batch)]
    assert exactjson.equal(decoded.batch, batch)


@settings(max_examples=examples(1500), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(message=gen.traces)
def test_otlp_to_batch_and_back(message: TracesData) -> None:
    messages = list(message.resource_spans)
    found = back_of_one(messages)
    if not messages:
        assert found == []
        return
    (decoded,) = found
    stored = exactjson.loads(exactjson.dumps(decoded.batch))
    assert exactjson.equal(stored, decoded.batch)
    assert texts(to_otlp(stored, plan_for(stored), decoded.name)) == texts(messages)


def back_of_one(messages: list[ResourceSpans]) -> list[Any]:
    reader = FromOtlp()
    return reader.feed(messages) + reader.finish()


@st.composite
def tampered(
    draw: st.DrawFn, batches: Callable[[], st.SearchStrategy[Any]] = lambda: gen.batches
) -> list[ResourceSpans]:
    """The encoder's own output with something changed: where a mapper fools itself."""
    batch = draw(batches())
    messages = encode_batch(batch, plan_for(batch))
    other = cache(lambda: draw(gen.resource_spans))  # few examples need it
    for message in messages:
        for scope_spans in message.scope_spans:
            for span in scope_spans.spans:
                if draw(st.booleans()):
                    _tamper(draw, span, other)
        how = draw(st.integers(0, 9))
        if how == 0 and message.scope_spans[0].scope.attributes:
            message.scope_spans[0].scope.attributes.pop()
        elif how == 1:
            message.scope_spans[0].scope.attributes.add(key=draw(st.sampled_from(gen.VOCABULARY)))
        elif how == 2:
            message.resource.attributes.add(key="k8s.pod.name").value.string_value = "pod"
        elif how == 3:
            message.MergeFrom(other())
    return messages


def _tamper(draw: st.DrawFn, span: Any, other: Callable[[], ResourceSpans]) -> None:
    how = draw(st.integers(0, 14))
    if how == 0:
        span.flags = draw(st.integers(0, 2**32 - 1))
    elif how == 1:
        span.status.code = 2
    elif how == 2:
        span.attributes.add(key="added").value.string_value = "by a processor"
    elif how == 3:
        pair = span.attributes.add(key=draw(st.sampled_from(gen.VOCABULARY)))
        pair.value.string_value = draw(st.sampled_from(["", "x", "{}", '{"set":{"id":5}}']))
    elif how == 4 and span.attributes:
        span.attributes.pop(draw(st.integers(0, len(span.attributes) - 1)))
    elif how == 5:
        span.span_id = draw(st.binary(max_size=9))
    elif how == 6:
        span.trace_id = draw(st.binary(max_size=17))
    elif how == 7:
        span.parent_span_id = draw(st.binary(max_size=9))
    elif how == 8:
        event = span.events.add(name="cirron.snapshot")
        event.attributes.add(key=draw(st.sampled_from(gen.VOCABULARY))).value.int_value = 1
    elif how == 9 and span.events:
        span.events[0].attributes.add(key=draw(st.sampled_from(gen.VOCABULARY)))
    elif how == 10:
        spans = [s for scope in other().scope_spans for s in scope.spans]
        if spans:
            span.MergeFrom(spans[0])
    elif how == 11:
        span.MergeFromString(gen._varint(5000 << 3 | 2) + b"\x03new")
    elif how == 12 and span.attributes:
        span.attributes.add().CopyFrom(draw(st.sampled_from(list(span.attributes))))
    elif how == 13 and span.events:
        span.events.add().CopyFrom(span.events[0])
        del span.events[0]
    elif how == 14 and span.events and span.events[0].attributes:
        pair = draw(st.sampled_from(list(span.events[0].attributes)))
        pair.value.double_value = draw(st.sampled_from([1.0, math.nan, math.inf]))


@settings(max_examples=examples(1500), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(messages=tampered())
def test_tampered_output_gives_its_messages_or_its_records(messages: list[ResourceSpans]) -> None:
    messages = wire(messages)
    found = back_of_one(messages)
    kept = [exactjson.loads(exactjson.dumps(d.batch)) for d in found]
    again = [to_otlp(batch, plan_for(batch), d.name) for batch, d in zip(kept, found, strict=True)]
    foreign = [m for batch, m in zip(kept, again, strict=True) if is_born_in_otlp(batch)]
    spans = sum(len(s.spans) for m in messages for s in m.scope_spans)
    if len(foreign) == len(found) and spans:
        assert texts([m for each in foreign for m in each]) == texts(messages)
    second = FromOtlp()
    twice = [d for each in again for d in second.feed(wire(each))] + second.finish()
    assert len(twice) == len(found)
    for batch in kept:
        assert any(exactjson.equal(batch, d.batch) for d in twice)


def is_born_in_otlp(batch: Any) -> bool:
    return encode_foreign(batch) is not None
