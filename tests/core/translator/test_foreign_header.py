"""Batches born in OTLP come back with their own id, time, version and name."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel import exactjson
from cirron_otel.core.translator.codec import pushable
from cirron_otel.core.translator.foreign.batch_header import header_of, read_header
from cirron_otel.core.translator.foreign.messages import decode_foreign
from cirron_otel.core.translator.own.decode import Decoded
from cirron_otel.core.translator.own.encode import encode_batch
from cirron_otel.core.translator.translate import FromOtlp, encode_foreign, to_otlp
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen
from tests.system.fuzz import corpus
from tests.tools.convert.test_deep_chains import calls_of

from .test_lossless import (
    PHASES,
    PLAN,
    SLOW,
    plan_for,
    texts,
    wire,
)

CREATED = 1_700_000_000_000_000_000


def message(name: str = "GET /") -> ResourceSpans:
    made = ResourceSpans()
    made.resource.attributes.add(key="service.name").value.string_value = "shop"
    made.scope_spans.add().spans.add(
        trace_id=b"t" * 16, span_id=b"s" * 8, name=name, kind=2, start_time_unix_nano=5,
        end_time_unix_nano=9,
    )  # fmt: skip
    return made


def decoded(*requests: list[ResourceSpans]) -> list[Decoded]:
    reader = FromOtlp()
    return [batch for each in requests for batch in reader.feed(each)] + reader.finish()


def received(*messages: ResourceSpans) -> dict[str, Any]:
    """A batch as a collector makes it of messages that it received."""
    batch = decode_foreign(messages) | {"created_ns": CREATED, "batch_id": "d0" * 16}
    batch["otel"]["received_ns"] = CREATED
    return batch


CASES: dict[str, dict[str, Any]] = {
    "as decoded": {},
    "of an older release": {"sdk_version": "0.3.0+cirron-otel.0.0.9"},
    "with an object as version": {"sdk_version": {"any": ["thing"]}},
    "with a version that UTF-8 cannot hold": {"sdk_version": "\ud800"},
    "with a long version": {"sdk_version": "x" * 5000},
    "with another id": {"batch_id": "d0" * 16},
    "with an id that is none": {"batch_id": 5},
    "with another time": {"created_ns": CREATED},
    "with a time below 0": {"created_ns": -1},
    "with a key more": {"custom": [1, {"a": None}]},
    "with a mark": {"marks": [{"id": "x"}]},
    "without ResourceSpans": {"spans": [], "otel": {"resource_spans": []}},
    "with other otel": {"otel_more": {"session": "a" * 32}},
    "a second copy": {"otel_more": {"copy": 1}},
    "a copy 0": {"otel_more": {"copy": 0}},
    "a received second copy": {"otel_more": {"copy": 3, "received_ns": 7}},
    "received before 1970": {"otel_more": {"received_ns": -7}},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_it_comes_back(changes: dict[str, Any]) -> None:
    batch = decode_foreign([message(), message("POST /")]) | changes
    batch["otel"] |= batch.pop("otel_more", {})
    (back,) = decoded(wire(to_otlp(batch, PLAN)))
    assert exactjson.equal(back.batch, batch)
    assert back.complete


@pytest.mark.parametrize("some", [[message()], [message(), message()], [ResourceSpans()]], ids=len)
def test_the_messages_stay_as_they_came(some: list[ResourceSpans]) -> None:
    batch = received(*some)
    made = to_otlp(batch, PLAN)
    assert read_header(made[0]) is not None
    assert texts(made[1:]) == texts(some)
    assert texts(to_otlp(decode_foreign(some), PLAN)) == texts(some), "no header is needed"
    data = TracesData(resource_spans=made).SerializeToString()
    assert pushable(data).data == TracesData(resource_spans=some).SerializeToString()


@pytest.mark.parametrize("others", [["x"], [], ["x", "GET /"]], ids=len)
def test_only_the_content_that_it_names(others: list[str]) -> None:
    header, _ = to_otlp(received(message()), PLAN)
    reader = FromOtlp()
    came = [header, *map(message, others)]
    (found,) = reader.feed(came)
    assert reader.headers_alone == 1
    assert found.batch["batch_id"] != "d0" * 16
    assert texts(encode_foreign(found.batch) or []) == texts(came), "nothing of it is lost"


def test_a_header_that_claims_more_messages_than_follow_has_no_messages() -> None:
    """The messages after it are not those of a batch that was cut, even if they match its id."""
    header = header_of(received(message()), 2)
    assert header is not None
    reader = FromOtlp()
    (found,) = reader.feed([header, message()])
    assert reader.headers_alone == 1
    assert found.batch["batch_id"] != "d0" * 16


def test_headers_that_claim_the_same_messages_cost_in_proportion() -> None:
    calls = []
    for count in (50, 100):
        headers = [header_of(received(message(str(n))), count // 2) for n in range(count)]
        came = [header for header in headers if header is not None]
        reader = FromOtlp()
        calls.append(calls_of(lambda: reader.feed(came)))  # noqa: B023
        assert reader.headers_alone == count
    assert calls[1] < 2.5 * calls[0]


def test_twice_is_a_duplicate() -> None:
    made = to_otlp(received(message()), PLAN)
    reader = FromOtlp()
    assert len(reader.feed([*made, *made])) == 1
    assert reader.feed(made) == []
    assert reader.regrouper.duplicates == 2


def test_one_id_and_two_contents_are_two_batches() -> None:
    batches = [received(message(name)) for name in "ab"]
    found = decoded([m for batch in batches for m in to_otlp(batch, PLAN)])
    assert all(exactjson.equal(d.batch, b) for d, b in zip(found, batches, strict=True))


def test_foreign_batch_with_cirron_content_stays_foreign() -> None:
    """A collector stored it as it came: it does not turn into the batch that it was."""
    own = gen_batch()
    for content in (encode_batch(own, PLAN), to_otlp(received(message()), PLAN)):
        for batch in (decode_foreign(content), received(*content)):
            (back,) = decoded(wire(to_otlp(batch, PLAN)))
            assert exactjson.equal(back.batch, batch)


def gen_batch() -> dict[str, Any]:
    span = {"id": f"{1:016x}{gen.LOWER}", "name": "step", "parent_id": None, "start_ns": 1,
            "end_ns": 2}  # fmt: skip
    return {"schema_version": 1, "sdk_version": "0.3.0", "batch_id": "c" * 32, "created_ns": 7,
            "spans": [span], "marks": [], "snapshots": []}  # fmt: skip


def test_a_header_is_one_to_the_byte() -> None:
    header = header_of(received(message()), 1)
    assert header is not None
    (pair,) = header.resource.attributes
    text = pair.value.string_value
    assert read_header(header) is not None
    for other in (
        text.replace(",", ", ", 1), text.replace('"messages":1', '"messages":0'),
        text.replace('"messages":1', '"messages":true'), text[:-1] + ',"x":1}', "{}", "[]", "",
        text.replace('"d0', '"created_ns":1,"d0'), text[:-1], text.replace("17", "-17"),
    ):  # fmt: skip
        pair.value.string_value = other
        assert read_header(header) is None, other
    pair.value.string_value = text
    header.schema_url = "x"
    assert read_header(header) is None


_versions = st.just("0.3.0+cirron-otel.0.0.9") | gen.texts | gen.json_values


@st.composite
def born_in_otlp(draw: st.DrawFn) -> dict[str, Any]:
    """Batches of any messages, some of them Cirron's own or headers, with any other top level."""
    messages = list(draw(gen.traces).resource_spans)
    if not draw(st.integers(0, 4)):
        messages += encode_batch(draw(gen.batches), PLAN)
    if not draw(st.integers(0, 4)):
        inner = decode_foreign(messages) | {"batch_id": "e0" * 16}
        messages = wire(to_otlp(inner, PLAN)) + messages
    batch = decode_foreign(messages)
    if draw(st.booleans()):
        batch["sdk_version"] = draw(_versions)
    if draw(st.booleans()):
        batch["batch_id"] = draw(st.just("d0" * 16) | gen.texts)
        batch["created_ns"] = draw(gen.times)
    for key in ("copy", "received_ns", "unknown"):
        if not draw(st.integers(0, 2)):
            batch["otel"][key] = draw(st.integers(0, 3) | gen.json_values)
    return batch


@settings(max_examples=examples(250), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(batch=born_in_otlp())
def test_any_batch_born_in_otlp_comes_back(batch: dict[str, Any]) -> None:
    (back,) = decoded(wire(to_otlp(batch, plan_for(batch))))
    assert exactjson.equal(back.batch, batch)


@pytest.mark.parametrize("text", ["\ud800", "x\udfff"], ids=ascii)
def test_a_schema_url_that_utf8_cannot_hold(text: str) -> None:
    for owner in (lambda group: group, lambda group: group["scope_spans"][0]):
        batch = decode_foreign([message()])
        owner(batch["otel"]["resource_spans"][0])["schema_url"] = text
        (back,) = decoded(wire(to_otlp(batch, PLAN)))
        assert exactjson.equal(back.batch, batch)


def test_any_value_replaced_in_a_batch_born_in_otlp() -> None:
    """It comes back, as messages of others or as a batch of Cirron's; nothing ends in an error."""
    chance = random.Random(5)
    some = list(corpus.rich().resource_spans)
    known = [
        exactjson.dumps(b) for b in (received(*some), decode_foreign(some), received(message()))
    ]
    for _ in range(400):
        value = json.loads(chance.choice(known))
        for _ in range(chance.choice((1, 1, 2, 3))):
            value = corpus.replaced(value, chance)
        batch = exactjson.loads(exactjson.dumps(value))
        if isinstance(batch, dict):
            (back,) = decoded(wire(to_otlp(batch, plan_for(batch))))
            assert exactjson.equal(back.batch, batch)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(batch=born_in_otlp(), data=st.data())
def test_several_batches_in_one_message(batch: dict[str, Any], data: st.DataObject) -> None:
    """As a collector merges them; those without a header become one batch."""
    made = [to_otlp(received(message(name)), PLAN) for name in "ab"]
    mine = wire(to_otlp(batch, plan_for(batch)))
    order = data.draw(st.permutations([*made, mine]))
    found = [d.batch for d in decoded([m for each in order for m in each])]
    for name in "ab":
        assert any(exactjson.equal(received(message(name)), one) for one in found)
    assert any(exactjson.equal(batch, one) for one in found)
