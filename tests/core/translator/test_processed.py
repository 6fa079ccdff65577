"""Attributes that processors of a collector add on the way: kept where a record can hold them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from cirron_otel import exactjson
from cirron_otel.core.placement.batch_placement import Plan
from cirron_otel.core.translator.events import FOREIGN, kind_of
from cirron_otel.core.translator.own.encode import Options, encode_batch
from cirron_otel.core.translator.own.own import plan_of
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen

from .test_lossless import (
    BATCHES,
    PHASES,
    PLAN,
    SHUFFLERS,
    SLOW,
    back,
    split,
    wire,
)
from .test_namesakes import (
    ONE,
    mark,
    plain,
    span,
)

ENV, POD = "deployment.environment", "k8s.pod.name"


def add_to_all(messages: list[ResourceSpans], *, events: bool) -> None:
    """What an attributes processor, a resource processor and a transform of events do."""
    for message in messages:
        message.resource.attributes.add(key=POD).value.string_value = "pod"
        for scope_spans in message.scope_spans:
            for each in scope_spans.spans:
                each.attributes.add(key=ENV).value.string_value = "prod"
                own = [event for event in each.events if kind_of(event) != FOREIGN]
                for event in own if events else ():
                    event.attributes.add(key=ENV).value.string_value = "prod"


def without_added(batch: Any, truth: Any) -> tuple[Any, int]:
    """The batch without what was added, and how many records held it."""
    batch = gen.copy_of(batch)
    held = 0
    for key in ("spans", "marks", "snapshots"):
        records = batch.get(key)
        for record in records if isinstance(records, list) else ():
            if isinstance(record, dict) and isinstance(record.get("attrs"), dict):
                held += record["attrs"].pop(ENV, None) == "prod"
    otel = batch["otel"]
    assert otel["resource"]["attributes"].pop(POD) == "pod"
    if "was" in otel:
        return batch | {"otel": otel["was"]}, held
    told = truth.get("otel")
    if not isinstance(told, dict) or "resource" not in told:
        if not otel["resource"]["attributes"]:
            del otel["resource"]
        if not otel and "otel" not in truth:
            del batch["otel"]
    elif "attributes" not in told["resource"]:
        del otel["resource"]["attributes"]
    return batch, held


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(
    batch=BATCHES,
    limits=gen.limits,
    plan=gen.plans(),
    events=st.booleans(),
    shuffler=SHUFFLERS,
    size=st.integers(1, 4),
)
def test_attributes_added_by_a_processor_are_stored_in_the_records(
    batch: Any, limits: Any, plan: Plan, events: bool, shuffler: random.Random, size: int
) -> None:
    with gen.cut(limits):
        messages = wire(encode_batch(batch, plan_of(batch) or plan))
        add_to_all(messages, events=events)
        (decoded,) = back(split(wire(messages), size, shuffler))
    assert decoded.complete
    bare, held = without_added(decoded.batch, batch)
    assert exactjson.equal(bare, batch)
    spans = [r for r in batch["spans"] if isinstance(r, dict)] if decoded.found.spans else []
    can_hold = sum(isinstance(record.get("attrs"), dict) for record in spans)
    assert held >= can_hold
    assert events or len(decoded.dropped) == len(spans) - can_hold


ATTRS = [{}, {"a": 1}, {"big": 2**64}, {"\udc00": 1, "a": "x"}, {"cirron.index": 2**70}]


@pytest.mark.parametrize("attrs", ATTRS, ids=str)
def test_added_and_changed_attributes_are_stored_with_exact_ones(attrs: dict[str, Any]) -> None:
    truth = plain(span(ONE, None, attrs=attrs), marks=[mark(ONE, "root", 1)])
    messages = wire(encode_batch(truth, PLAN))
    add_to_all(messages, events=False)
    for pair in messages[0].scope_spans[0].spans[0].attributes:
        if pair.key == "a":
            pair.value.string_value = "changed"
    (decoded,) = back(messages)
    changed = {"a": "changed"} if "a" in attrs else {}
    assert exactjson.equal(decoded.batch["spans"][0]["attrs"], attrs | changed | {ENV: "prod"})
    assert decoded.dropped == []


@pytest.mark.parametrize("attrs", [None, 5, "x", [1]], ids=str)
def test_attributes_that_no_record_can_hold_are_reported(attrs: object) -> None:
    truth = plain(span(ONE, None, attrs=attrs))
    messages = wire(encode_batch(truth, PLAN))
    messages[0].scope_spans[0].spans[0].attributes.add(key=ENV).value.string_value = "prod"
    (decoded,) = back(messages)
    assert exactjson.equal(decoded.batch, truth)
    assert decoded.dropped == [ENV]


@pytest.mark.parametrize("otel", [5, {"resource": 5}, {"resource": {"attributes": 5}}], ids=str)
def test_malformed_otel_is_preserved_with_added_attributes(otel: object) -> None:
    messages = wire(encode_batch(plain(span(ONE, None), otel=otel), PLAN))
    messages[0].resource.attributes.add(key=POD).value.string_value = "pod"
    (decoded,) = back(messages)
    assert decoded.batch["otel"]["resource"]["attributes"] == {POD: "pod"}
    assert exactjson.equal(decoded.batch["otel"]["was"], otel)


@pytest.mark.parametrize("sessions", [2, 40])
def test_a_large_resource_and_header_are_written_once(sessions: int) -> None:
    spans = [
        span(f"{n:016x}1122334455667788", None, name="cirron.session")
        for n in range(1, sessions + 1)
    ]
    attributes = {"small": "s", "x": "y" * 600_000, "z": 1}
    truth = plain(*spans, otel={"resource": {"attributes": attributes}}, sdk_version="v" * 600_000)
    messages = wire(encode_batch(truth, PLAN))
    assert len(messages) == sessions
    assert sum(message.ByteSize() for message in messages) < 3_000_000
    assert all(any(p.key == "small" for p in m.resource.attributes) for m in messages)
    (decoded,) = back(split(messages, 1, random.Random(0)))
    assert exactjson.equal(decoded.batch, truth)


@pytest.mark.parametrize("added", ["cirron", "trainer"])
@pytest.mark.parametrize("is_set", [False, True])
def test_service_name_set_by_a_processor_is_preserved(added: str, is_set: bool) -> None:
    """And the one that the encoder added is removed, whichever it is."""
    batch = plain(span(ONE, None))
    messages = wire(encode_batch(batch, PLAN, options=Options(service_name=added)))
    [name] = [pair for pair in messages[0].resource.attributes if pair.key == "service.name"]
    assert name.value.string_value == added
    if is_set:
        name.value.string_value = "shop"
    [decoded] = back(messages)
    if is_set:
        batch["otel"] = {"resource": {"attributes": {"service.name": "shop"}}}
    assert exactjson.equal(decoded.batch, batch)
    [again] = back(wire(encode_batch(decoded.batch, PLAN)))
    assert exactjson.equal(again.batch, batch)
