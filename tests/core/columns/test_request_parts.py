"""The same requests in the batches of different collectors are the same batches in the tables."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.columns.request_parts import batches_of_parts, rows_by_partition
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.records.canonical import batch_bytes
from cirron_otel.core.records.check import check_batch
from cirron_otel.core.targets.sql.ownership import DEFAULT_CONTEXT, OwnerContext
from cirron_otel.core.targets.sql.received import parts_of
from cirron_otel.core.translator.foreign.fast import ForeignText
from cirron_otel.core.translator.foreign.messages import messages_of
from cirron_otel.core.translator.logs.log_marks import LogMarks, logs_of
from cirron_otel.semconv import RUN_ID
from tests.kit.spools.recorded import SPOOLS
from tests.system.kafka.load import request

NAME = "00000000000000000009-a.json"
DAY_NS = 86_400 * 10**9


def received(bodies: list[bytes], batch_id: str, created_ns: int = 9) -> SealedBatch:
    """The batch of a collector that received some requests together."""
    text = ForeignText()
    for body in bodies:
        text.add(body)
    return SealedBatch(NAME, text.text(batch_id, created_ns))


def received_logs(bodies: list[bytes], seed: str, created_ns: int = 9) -> list[SealedBatch]:
    marks = LogMarks()
    for body in bodies:
        marks.add(body)
    return [SealedBatch(NAME, batch_bytes(each)) for each in marks.batches(seed, created_ns)]


def split(*batches: SealedBatch, context: OwnerContext = DEFAULT_CONTEXT) -> dict[str, bytes]:
    """The batches of parts by name."""
    return {
        name: data
        for each in batches
        for name, data in batches_of_parts(SealedBatch(*each), context)
    }


def requests() -> list[bytes]:
    """Requests, some with resources of other runs, and one with spans that differ in everything."""
    message = TracesData()
    for number in range(3):
        group = message.resource_spans.add(schema_url="s" * number)
        run = group.resource.attributes.add(key=RUN_ID)
        run.value.string_value = f"run {number % 2}"
        for _ in range(number):
            scope = group.scope_spans.add(schema_url="http://x")
            scope.scope.name = f"scope {number}"
            for n in range(3):
                span = scope.spans.add(trace_id=b"t" * 16, span_id=bytes([n + 1] * 8), name="é")
                span.end_time_unix_nano = n * DAY_NS
                span.events.add(name="e", time_unix_nano=2**63)
                span.status.message = "\n"
    return [*map(request, range(4)), message.SerializeToString()]


def logs() -> list[bytes]:
    bodies = []
    for number in range(3):
        message = LogsData()
        resource = message.resource_logs.add()
        resource.resource.attributes.add(key=RUN_ID).value.string_value = f"run {number % 2}"
        scope = resource.scope_logs.add()
        scope.scope.name = f"scope {number % 2}"
        for n in range(2):
            scope.log_records.add(
                trace_id=bytes([n + 1] * 16), span_id=b"s" * 8, event_name=f"mark {number}",
                time_unix_nano=n * DAY_NS,
            )  # fmt: skip
        bodies.append(message.SerializeToString())
    return bodies


def test_the_grouping_of_requests_changes_nothing() -> None:
    bodies = requests()
    together = split(received(bodies, "a" * 32, 5))
    shuffled = random.Random(1).sample(bodies, len(bodies))
    apart = split(received(shuffled[:2], "b" * 32, 6), received(shuffled[2:], "c" * 32, 7))
    assert together == apart
    assert len(together) == 4 + 3
    for name, data in together.items():
        assert check_batch(data) is None
        batch = exactjson.loads(data)
        assert name == f"{batch['created_ns']:020d}-{batch['batch_id']}.json"
        assert batch["created_ns"] == max((s["end_ns"] for s in batch["spans"]), default=0)


def test_the_messages_come_back() -> None:
    bodies = requests()
    sent = [m for body in bodies for m in TracesData.FromString(body).resource_spans]
    back = [
        message
        for data in split(received(bodies, "a" * 32)).values()
        for message in messages_of(exactjson.loads(data)) or ()
    ]
    assert sorted(map(str, back)) == sorted(map(str, sent))


def test_marks_of_log_records() -> None:
    bodies = logs()
    together = split(*received_logs(bodies, "a", 5))
    apart = split(*received_logs(bodies[1:], "b", 6), *received_logs(bodies[:1], "c", 7))
    assert together == apart
    assert len(together) == 6
    records = []
    for data in together.values():
        assert check_batch(data) is None
        message = LogsData(resource_logs=[logs_of(exactjson.loads(data))])
        assert [each.data for each in received_logs([message.SerializeToString()], "d")]
        records += [r for s in message.resource_logs[0].scope_logs for r in s.log_records]
    sent = [
        record
        for body in bodies
        for resource in LogsData.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    assert sorted(map(str, records)) == sorted(map(str, sent))


def test_equal_parts_of_one_batch_stay_apart() -> None:
    """A client that sends equal ResourceSpans in one request wants both."""
    twice = request(0) + request(0)
    parts = split(received([twice], "a" * 32))
    assert len(parts) == 2
    assert parts.keys() > split(received([request(0)], "b" * 32)).keys()


def test_the_release_of_a_collector_changes_nothing() -> None:
    new = received([request(0)], "a" * 32)
    old = new.data.replace(b"+cirron-otel.", b"+cirron-otel.0.", 1)
    assert old != new.data
    assert split(new) == split(SealedBatch(NAME, old))


def test_the_owner_of_a_sender_makes_a_difference() -> None:
    batch = received([request(0)], "a" * 32)
    assert not split(batch).keys() & split(batch, context=OwnerContext({RUN_ID: "r"})).keys()


def test_the_digests_of_the_database_are_the_same() -> None:
    """So a database that receives both copies recognises them."""
    for batch in (received(requests(), "a" * 32), *received_logs(logs(), "a")):
        whole = sorted(part.digest for part in parts_of(batch, DEFAULT_CONTEXT))
        each = [
            part.digest
            for name, data in split(batch).items()
            for part in parts_of(SealedBatch(name, data), DEFAULT_CONTEXT)
        ]
        assert sorted(each) == whole


def test_packed_rows_match_the_rows_of_the_split_batches() -> None:
    batch = received(requests(), "a" * 32)
    packed = rows_by_partition(batch, DEFAULT_CONTEXT)
    assert len(packed) == 4  # a day, a run of another day, and two without spans
    expected = {rows_of(*each).key: each for each in split(batch).items()}
    assert sorted(key for rows in packed for key in rows.keys) == sorted(expected)
    for rows in packed:
        keys = set(rows.keys)
        assert rows.of(sorted(keys)) is rows
        for key in keys:
            [one] = rows_by_partition(SealedBatch(*expected[key]), OwnerContext())
            # a batch of one part is divided into itself
            assert rows.of([key]).tables == one.tables


@pytest.mark.parametrize("spool", ["01_torch_basic", "07_ranks"])
def test_cirron_batches_are_not_split(spool: str) -> None:
    for path in Path(SPOOLS / spool).rglob("0*.json"):
        batch = SealedBatch(path.name, path.read_bytes())
        assert batches_of_parts(batch, DEFAULT_CONTEXT) == []
        [rows] = rows_by_partition(batch, DEFAULT_CONTEXT)
        assert rows.keys == (rows_of(*batch).key,)


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"marks": [{}]},
        {"otel": {"resource_spans": [], "received_ns": 1}},
        {"sdk_version": None},
    ],
)
def test_batch_not_written_by_a_collector_is_not_split(change: dict[str, object]) -> None:
    batch = exactjson.loads(received([request(0)], "a" * 32).data) | change
    assert batches_of_parts(SealedBatch(NAME, exactjson.dumps(batch)), DEFAULT_CONTEXT) == []


def test_logs_with_a_mismatched_session_are_not_split() -> None:
    [batch] = received_logs(logs()[:1], "a")
    changed = exactjson.loads(batch.data)
    changed["otel"]["session"] = "0" * 32
    assert batches_of_parts(SealedBatch(NAME, exactjson.dumps(changed)), DEFAULT_CONTEXT) == []
