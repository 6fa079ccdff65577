"""Logs that are marks, into batches and back, and through spans: nothing of a record is lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, LogsData, ResourceLogs
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.core.records.canonical import batch_bytes
from cirron_otel.core.records.validate import validate_batch
from cirron_otel.core.translator.logs.log_marks import LogMarks, is_mark, keep_marks, logs_of
from cirron_otel.core.translator.own.encode import SEGMENTED, Options
from cirron_otel.core.translator.translate import FromOtlp, encode_own
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen

from .test_lossless import PHASES, SLOW, split

TRACES = [bytes([n]) * 16 for n in (1, 2)]
SPANS = [bytes([n]) * 8 for n in (7, 8)]
names = st.sampled_from(["loss", "cirron.mark", "cirron.snapshot", "é", "a\0b"])


@st.composite
def records(draw: st.DrawFn) -> LogRecord:
    """Log records that are marks, and near misses."""
    record = draw(gen._from(LogRecord))
    if draw(st.booleans()):
        record.trace_id, record.span_id = (
            draw(st.sampled_from(TRACES)),
            draw(st.sampled_from(SPANS)),
        )
    if draw(st.booleans()):
        record.event_name = draw(names)
    if draw(st.booleans()):
        record.attributes.add(key="event.name").value.string_value = draw(names)
    return record


@st.composite
def requests(draw: st.DrawFn) -> LogsData:
    """Requests of a few records."""
    data = LogsData()
    for _ in range(draw(st.integers(1, 2))):
        resource = draw(gen._from(ResourceLogs))
        del resource.scope_logs[:]
        for _ in range(draw(st.integers(1, 2))):
            resource.scope_logs.add().log_records.extend(draw(st.lists(records(), max_size=4)))
            resource.scope_logs[-1].scope.name = draw(st.sampled_from(["", "a", "b"]))
        data.resource_logs.append(resource)
    return data


def told(messages: list[ResourceLogs]) -> list[tuple[bytes, bytes, bytes]]:
    """Every record with its scope and resource, sorted."""
    found = []
    for message in messages:
        bare = ResourceLogs.FromString(message.SerializeToString())
        del bare.scope_logs[:]
        for scope in message.scope_logs:
            found += [
                (bare.SerializeToString(), scope.scope.SerializeToString(), r.SerializeToString())
                for r in scope.log_records
            ]
    return sorted(found)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(requests(), st.randoms(use_true_random=False))
def test_nothing_is_lost(request: LogsData, shuffler: random.Random) -> None:
    truth = [
        (resource, scope, record)
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    wanted = LogsData.FromString(request.SerializeToString())
    kept, others = keep_marks(wanted)
    assert kept == sum(is_mark(record) for *_, record in truth) == len(truth) - others
    marks = LogMarks()
    assert marks.add(wanted.SerializeToString()) == marks.add(b"") + kept
    batches = list(marks.batches("seed", 1_700_000_000_000_000_000))
    assert told([logs_of(batch) for batch in batches]) == told(list(wanted.resource_logs))
    for batch in batches:
        through_spans(batch, shuffler)


def through_spans(batch: gen.Any, shuffler: random.Random) -> None:
    """As OTLP spans, split by a collector, and back."""
    data = batch_bytes(batch)
    assert not [each for each in validate_batch(data) if each.severity == "error"]
    message = TracesData.FromString(encode_own(data, None, Options(SEGMENTED)))
    trace_ids = {m["otel"]["log"]["trace_id"] for m in batch["marks"]}
    spans = [s for r in message.resource_spans for c in r.scope_spans for s in c.spans]
    assert {span.trace_id.hex() for span in spans} <= trace_ids
    reader = FromOtlp()
    found = reader.feed(split(list(message.resource_spans), 2, shuffler))
    found += reader.finish()
    assert [exactjson.equal(each.batch, batch) for each in found] == [True]


VALUES = {
    "the body": ({"body": 0.5}, ("float", 0.5)),
    "a whole number": ({"body": 3}, ("int", 3)),
    "what says so": ({"body": "x", "cirron.mark.value": True}, ("bool", True)),
    "an attribute": ({"value": "v"}, ("string", "v")),
    "nothing": ({}, ("bool", True)),
    "not a number": ({"body": float("nan")}, ("float", None)),
    "a long text": ({"body": "é" * 200}, ("string", "é" * 128)),
}


@pytest.mark.parametrize(("told", "expected"), VALUES.values(), ids=VALUES)
def test_the_value(told: dict[str, object], expected: tuple[str, object]) -> None:
    data = LogsData()
    record = (
        data.resource_logs.add()
        .scope_logs.add()
        .log_records.add(
            trace_id=TRACES[0], span_id=SPANS[0], event_name="loss", observed_time_unix_nano=5
        )
    )
    for key, value in told.items():
        target = record.body if key == "body" else record.attributes.add(key=key).value
        field = {float: "double", int: "int", bool: "bool", str: "string"}[type(value)]
        setattr(target, f"{field}_value", value)
    marks = LogMarks()
    marks.add(data.SerializeToString())
    (batch,) = marks.batches("", 5)
    (mark,) = batch["marks"]
    assert (mark["value_type"], mark["value"]) == expected
    assert (mark["span_id"], mark["ts_ns"]) == ("07" * 8 + "01" * 8, 5)
    assert mark["kind"] == "point"


def test_inside_a_session_of_cirrons() -> None:
    """The session that the resource names, the trace that the record names, and back."""
    session, trace, other = "5e" * 8 + "11" * 8, "ab" * 8 + "11" * 8, "cd" * 16
    data = LogsData()
    resource = data.resource_logs.add()
    resource.resource.attributes.add(key="cirron.session.id").value.string_value = session
    resource.resource.attributes.add(key="service.name").value.string_value = "trainer"
    scope = resource.scope_logs.add()
    for number, trace_id in enumerate((trace, other)):
        scope.log_records.add(
            trace_id=bytes.fromhex(trace_id), span_id=SPANS[0], event_name="loss",
            time_unix_nano=10 - number,
        )  # fmt: skip
    marks = LogMarks()
    marks.add(data.SerializeToString())
    (batch,) = marks.batches("", 5)
    assert batch["otel"]["session"] == session
    assert batch["otel"]["trace_id"] == trace
    assert batch["otel"]["traces"] == {"07" * 8 + "cd" * 8: other}
    assert batch["otel"]["resource"] == {"attributes": {"service.name": "trainer"}}
    message = TracesData.FromString(encode_own(batch_bytes(batch), None, Options(SEGMENTED)))
    spans = [s for r in message.resource_spans for c in r.scope_spans for s in c.spans]
    carriers = {(s.trace_id.hex(), s.parent_span_id) for s in spans if s.name == "cirron.marks"}
    assert carriers == {(trace, SPANS[0]), (other, SPANS[0])}
    assert logs_of(batch) == resource
    through_spans(batch, random.Random(1))
