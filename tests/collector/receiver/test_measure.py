"""Requests measured on the wire: the same counts and refusals as by parsing, at next to no cost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from unittest.mock import patch

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from cirron_otel.collector.receiver.consumer import ReceivedSignal
from cirron_otel.collector.receiver.measure import (
    MalformedError,
    Measure,
    RequestContent,
    TooManyElementsError,
    content,
    measure,
)
from tests.kit.examples import examples
from tests.kit.generators.otlp_messages import descendants, traces

from .measure_hostile import (
    IN_SCOPE,
    IN_SPAN,
    REQUESTS,
    VALUE,
    field,
    nested,
)
from .wire_messages import Maker, held, held_on_the_wire

DATA: dict[ReceivedSignal, type[Message]] = {
    ReceivedSignal.TRACES: TracesData,
    ReceivedSignal.LOGS: LogsData,
    ReceivedSignal.METRICS: MetricsData,
}
signals = pytest.mark.parametrize("signal", DATA)
seeds = st.integers(0, 2**40)
often = settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))


def as_measure(found: Counter[str]) -> Measure:
    kinds = ("Span", "Event", "Link", "KeyValue")
    return Measure(*(found[kind] for kind in kinds), found.total())


def is_taken(body: bytes, signal: ReceivedSignal) -> bool:
    try:
        DATA[signal].FromString(body)
    except DecodeError:
        return False
    return True


@settings(often, max_examples=80)
@given(traces())
def test_measure_counts_the_elements_of_generated_traces(message: TracesData) -> None:
    spans = [each for each in descendants(message) if isinstance(each, Span)]
    found = measure(message.SerializeToString())
    assert found == as_measure(held(message))
    assert found.spans == len(spans)
    assert found.events == sum(len(span.events) for span in spans)
    assert found.is_empty == (not message.resource_spans)


@signals
@often
@given(seeds)
def test_measure_counts_the_elements_of_arbitrary_wire_data(
    signal: ReceivedSignal, seed: int
) -> None:
    body = Maker(Random(seed)).message(DATA[signal].DESCRIPTOR)
    found = measure(body, signal)
    assert found == as_measure(held_on_the_wire(body, DATA[signal].DESCRIPTOR))
    assert content(body, signal) == (found.spans, found.is_empty)
    assert content(body, signal, found.elements) == (found.spans, found.is_empty)
    if found.elements:
        with pytest.raises(TooManyElementsError):
            content(body, signal, min(found.elements, len(body) // 2) - 1)
    assert is_taken(body, signal)


@signals
@often
@given(seeds, st.integers(1, 60))
def test_splitting_a_long_body_does_not_change_its_counts(
    signal: ReceivedSignal, seed: int, whole: int
) -> None:
    body = Maker(Random(seed), groups=False).message(DATA[signal].DESCRIPTOR)
    with patch("cirron_otel.collector.receiver.measure._WHOLE", whole):
        cut = measure(body, signal)
    assert cut == measure(body, signal)


@signals
@often
@given(seeds)
def test_measure_refuses_the_same_bodies_as_the_parser(signal: ReceivedSignal, seed: int) -> None:
    random = Random(seed)
    mutable = bytearray(Maker(random, valid=False).message(DATA[signal].DESCRIPTOR))
    for _ in range(random.randint(0, 2) if mutable else 0):
        mutable[random.randrange(len(mutable))] = random.randrange(256)
    body = bytes(mutable[: random.choice((None, random.randint(0, len(mutable))))])
    for how in (measure, content):
        try:
            how(body, signal)
        except MalformedError:
            assert not is_taken(body, signal)
        else:
            assert is_taken(body, signal)


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        (b"\x0a\x05ab", False),  # longer than it is
        (b"\x0a", False),
        (b"\x02\x00", False),  # field 0
        (b"\x0f", False),  # wire type 7
        (b"hello", False),
        (b"\x1f\x8b\x08\x00", False),
        (b"\x08\x01", True),  # a number where messages are: unknown
        (IN_SPAN(b"\x2a\x02\xc3\xa9"), True),
        (IN_SPAN(b"\x2a\x01\xe9"), False),  # a name in Latin-1
        (IN_SPAN(b"\x0a\x01\xe9"), True),  # an id
        (VALUE(b"\x0a\x01\xe9"), False),
        (VALUE(nested(1, b"\x0a\x01\xe9")), False),
        (VALUE(nested(30, b"\x0a\x01\xe9")), False),
        (VALUE(nested(1, b"\x0a\x04a")), False),  # what follows the array would make it whole
        (VALUE(b"\x2a\x06" + b"\x0a\x01\x0a\x0a\x01a"), False),
        (IN_SPAN(field(b"\x5a", b"\x12\x01\xe9")), False),
        (IN_SPAN(field(b"\x6a", b"\x1a\x01\xe9")), False),
        (VALUE(nested(47)), True),
        (VALUE(nested(48)), False),  # more than 100 levels
    ],
)
@pytest.mark.parametrize("how", [measure, content])
def test_the_rules_of_protobuf(
    how: Callable[[bytes], Measure | RequestContent], body: bytes, taken: bool
) -> None:
    assert is_taken(body, ReceivedSignal.TRACES) == taken
    if taken:
        assert not how(body).is_empty or body == b"\x08\x01"
    else:
        with pytest.raises(MalformedError, match=r"not a protobuf message .*TracesData"):
            how(body)


@pytest.mark.parametrize("count", [99, 100, 101])
@pytest.mark.parametrize("content", [IN_SCOPE(b"\x12\x00" * 97), VALUE(nested(1) * 48)])
def test_more_elements_than_are_taken(content: bytes, count: int) -> None:
    body = content + b"\x0a\x00" * (count - measure(content).elements)
    if count <= 100:
        assert measure(body, max_elements=100).elements == count
    else:
        with pytest.raises(TooManyElementsError, match="more than 100 elements"):
            measure(body, max_elements=100)


def test_groups_are_unknown_fields_of_a_small_request_only() -> None:
    group = b"\x7b\x7c" + IN_SPAN(b"")
    assert measure(group).spans == 1
    with (
        patch("cirron_otel.collector.receiver.measure._WHOLE", 4),
        pytest.raises(MalformedError, match=r"a group \(field 15\)"),
    ):
        measure(group)


TAKEN = {
    "nothing": Measure(),
    "4 MiB of unknown fields": Measure(),
    "4 MiB of groups": Measure(),
    "4 MiB of unknown fields between known": Measure(spans=1, elements=3),
    "4 MiB of short names": Measure(spans=1, elements=3),
    "20 MiB of one text": Measure(spans=1, elements=3),
}
MALFORMED = {"arrays nested beyond what parsers take", "20 MiB of groups"}
MOST_MIB = 96


@pytest.mark.parametrize("name", REQUESTS)
def test_hostile_requests_take_little_memory(name: str) -> None:
    """In a process of its own, so that its peak is what the one request took."""
    program = (sys.executable, "-m", "tests.collector.receiver.measure_hostile", name)
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    refused = "MalformedError" if name in MALFORMED else "TooManyElementsError"
    assert found["outcome"] == (repr(TAKEN[name]) if name in TAKEN else refused)
    assert found["over_kib"] <= MOST_MIB * 1024


def test_parsing_the_hostile_body_exceeds_the_memory_limit() -> None:
    """Else measuring would be pointless: the same bytes as messages."""
    program = (sys.executable, "-m", "tests.collector.receiver.measure_hostile", "--parse")
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["over_kib"] > MOST_MIB * 1024
