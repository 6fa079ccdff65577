"""The guarantees of docs/ingestion.md, each by itself."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.columns.reading import ColumnsReader
from tests.kit.backends.kafka import MESSAGE_BYTES, Kafka
from tests.kit.spools.comparing import (
    assert_same,
    batches,
    cirron_otel,
    recorded,
)

from .load import SPANS, request
from .members import (
    AGENT,
    CONSUMER,
    Collector,
    Otelcol,
    Topics,
    without_long_waits,
)
from .stored import Rows, TableRows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1800)]

SECONDS = 300.0


@pytest.fixture
def topics(kafka_broker: Kafka, tmp_path: Path) -> Topics:
    """Topics of this test's own, with one partition each."""
    return Topics(kafka_broker, tmp_path.name, 1)


class Parts:
    """What a test has started, and ends with it."""

    def __init__(self, topics: Topics, storage: str, directory: Path) -> None:
        self._topics, self._storage, self._directory = topics, storage, directory
        self._started: list[Otelcol | Collector] = []

    def agent(self) -> Otelcol:
        return self._otelcol(AGENT)

    def consumer(self, endpoint: str, config: Path | str = CONSUMER, **settings: str) -> Otelcol:
        return self._otelcol(config, COLLECTOR=endpoint, **settings)

    @property
    def tables(self) -> str:
        """The columnar tables of all collectors."""
        return str(self._directory / "tables")

    def collector(self, **limits: int) -> Collector:
        collector = Collector(self._new_folder(), self._storage, self.tables, **limits)
        self._started.append(collector)
        return collector

    def stop(self) -> None:
        for part in reversed(self._started):
            part.stop()

    def _otelcol(self, config: Path | str, **settings: str) -> Otelcol:
        part = Otelcol(config, self._new_folder(), self._topics.settings(**settings))
        self._started.append(part)
        return part

    def _new_folder(self) -> Path:
        return self._directory / f"part-{len(self._started)}"


@pytest.fixture
def parts(topics: Topics, postgres_url: str, tmp_path: Path) -> Iterator[Parts]:
    parts = Parts(topics, postgres_url, tmp_path)
    yield parts
    parts.stop()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)


def send(http: str, body: bytes, signal: str = "traces") -> None:
    asked = urllib.request.Request(
        f"{http}/v1/{signal}", body, {"Content-Type": "application/x-protobuf"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 200


def marked_before() -> str:
    """The consumer as it would be by default: a message is marked before it is sent."""
    config = yaml.safe_load(without_long_waits(CONSUMER))
    config["receivers"]["kafka"]["message_marking"]["after"] = False
    return yaml.safe_dump(config)


@pytest.mark.parametrize("marked", ["after", "before"])
def test_an_offset_is_committed_after_the_collector_acknowledged(
    marked: str, topics: Topics, parts: Parts, postgres_url: str
) -> None:
    agent, collector = parts.agent(), parts.collector()
    collector.kill()
    send(agent.backend.otlp_http, request(0))
    until(lambda: topics.end() > 0)
    config = without_long_waits(CONSUMER) if marked == "after" else marked_before()
    first = parts.consumer(collector.endpoint, config)
    # Offsets are committed once a second, and six attempts take longer than that.
    until(lambda: first.log().count("Backing off due to error") >= 6)
    if marked == "before":
        until(lambda: topics.committed() > 0)  # the reason for `after: true`
        return
    assert topics.committed() == 0
    first.kill()
    collector.start()
    parts.consumer(collector.endpoint)
    until(topics.is_consumed)
    collector.drain()
    assert Rows(postgres_url, SPANS).counts() == bytearray(b"\1" * SPANS)


def test_the_same_request_to_two_collectors_is_one_row(
    topics: Topics, parts: Parts, postgres_url: str
) -> None:
    agent, one, two = parts.agent(), parts.collector(), parts.collector()
    for number in range(5):
        send(agent.backend.otlp_http, request(number))
    send(agent.backend.otlp_http, request(0))  # as after a response that was lost
    until(lambda: topics.end() >= 6 * 4)  # a message for each trace of each request
    for group, collector in (("one", one), ("two", two)):
        parts.consumer(collector.endpoint, GROUP=f"{topics.group}.{group}")
    for group in ("one", "two"):
        until(lambda group=group: topics.is_consumed(f"{topics.group}.{group}"))
    for collector in (one, two):
        collector.drain()
        assert collector.has_stored()
    once = bytearray(b"\1" * 5 * SPANS)
    assert Rows(postgres_url, 5 * SPANS).counts() == once
    tables = TableRows(parts.tables, 5 * SPANS)
    assert tables.counts() == tables.counts_of_sql() == tables.counts_of_files() == once


def test_recordings_come_back_equal(
    topics: Topics, parts: Parts, postgres_url: str, tmp_path: Path
) -> None:
    agent, one, two = parts.agent(), parts.collector(), parts.collector()
    endpoint = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": agent.backend.otlp_http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    truth: dict[str, Any] = {}
    for spool in recorded():
        is_torn = any(spool.rglob("*.json.tmp"))  # a file that its writer never finished
        cirron_otel("export", spool, expected=int(is_torn), **endpoint)
        truth |= batches(spool)
    agent.stop()  # without what is in its queue
    agent.start()
    for group, collector in (("one", one), ("two", two)):
        parts.consumer(collector.endpoint, GROUP=f"{topics.group}.{group}")
    ids = {span["id"] for batch in truth.values() for span in batch["spans"]}
    until(lambda: ids <= stored_ids(postgres_url))
    for group, collector in (("one", one), ("two", two)):
        until(lambda group=group: topics.is_consumed(f"{topics.group}.{group}"))
        collector.drain()
    for number, source in enumerate((postgres_url, f"parquet:{parts.tables}")):
        # A batch whose records are in two traces is stored in two parts, which OTLP puts together.
        lines, back = tmp_path / f"{number}.otlp.jsonl", tmp_path / f"back-{number}"
        cirron_otel("convert", source, lines)
        cirron_otel("convert", lines, back)
        assert_same(batches(back), truth)
    rows = ColumnsReader(parts.tables).rows("spans", columns=["id"]).column("id").to_pylist()
    assert sorted(rows) == sorted(s["id"] for batch in truth.values() for s in batch["spans"])


def stored_ids(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        try:
            return {row[0] for row in connection.execute('SELECT "id" FROM "TraceSpan"')}
        except psycopg.errors.UndefinedTable:
            return set()


def test_marks_that_are_log_records(
    topics: Topics, parts: Parts, postgres_url: str, kafka_broker: Kafka
) -> None:
    logs = LogsData()
    records = logs.resource_logs.add().scope_logs.add().log_records
    for number in range(4):
        records.add(
            trace_id=b"t" * 16, span_id=b"s" * 8, event_name=f"mark {number}", time_unix_nano=5
        )
    agent, one, two = parts.agent(), parts.collector(), parts.collector()
    send(agent.backend.otlp_http, logs.SerializeToString(), "logs")
    for group, collector in (("one", one), ("two", two)):
        parts.consumer(collector.endpoint, GROUP=f"{topics.group}.{group}")
        until(lambda group=group: kafka_broker.committed(f"{topics.group}.{group}", topics.logs))
        collector.drain()
        assert collector.has_stored()
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute('SELECT "name" FROM "TraceMark" ORDER BY "name"').fetchall()
    names = [f"mark {number}" for number in range(4)]
    assert [name for (name,) in rows] == names
    marks = ColumnsReader(parts.tables).rows("marks", columns=["name"]).column("name")
    assert sorted(marks.to_pylist()) == names


def test_message_larger_than_the_kafka_defaults_is_delivered(
    topics: Topics, parts: Parts, postgres_url: str
) -> None:
    """More than 1 MB, also compressed."""
    message = TracesData()
    span = (
        message.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="step", end_time_unix_nano=5)
    )
    noise = os.urandom(3_000_000).hex()
    span.attributes.add(key="noise").value.string_value = noise
    agent, collector = parts.agent(), parts.collector()
    send(agent.backend.otlp_http, message.SerializeToString())
    parts.consumer(collector.endpoint)
    until(lambda: topics.end() >= 1 and topics.is_consumed())
    collector.drain()
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute('SELECT "attrs"::text FROM "TraceSpan"').fetchall()
    assert len(rows) == 1
    assert noise in rows[0][0]


def test_a_refused_message_waits(topics: Topics, parts: Parts, postgres_url: str) -> None:
    agent, small = parts.agent(), parts.collector(request_elements=10)
    send(agent.backend.otlp_http, request(0))
    until(lambda: topics.end() > 0)
    refused = parts.consumer(small.endpoint)
    until(lambda: "pausing partition" in refused.log())
    refused.stop()
    assert topics.committed() == 0
    collector = parts.collector()
    parts.consumer(collector.endpoint)
    until(topics.is_consumed)
    collector.drain()
    assert Rows(postgres_url, SPANS).counts() == bytearray(b"\1" * SPANS)


def test_a_refused_message_is_skipped_on_request(topics: Topics, parts: Parts) -> None:
    agent, small = parts.agent(), parts.collector(request_elements=10)
    send(agent.backend.otlp_http, request(0))
    until(lambda: topics.end() > 0)
    consumer = parts.consumer(small.endpoint, SKIP_REFUSED="true")
    until(topics.is_consumed)
    assert "skipping due to message_marking config" in consumer.log()


def test_an_agent_waits_for_its_topic(
    kafka_broker: Kafka, parts: Parts, topics: Topics, tmp_path: Path
) -> None:
    later = topics.settings(SPANS_TOPIC=f"{topics.spans}.later")
    agent = Otelcol(AGENT, tmp_path / "agent", later)
    try:
        send(agent.backend.otlp_http, request(0))
        until(lambda: "UNKNOWN_TOPIC_OR_PARTITION" in agent.log())
        kafka_broker.create_topic(later["SPANS_TOPIC"], 1)
        until(lambda: sum(kafka_broker.end_offsets(later["SPANS_TOPIC"], 1).values()) >= 4)
    finally:
        agent.stop()


def test_topic_accepts_the_largest_message_of_an_agent() -> None:
    config = yaml.safe_load(AGENT.read_text())
    assert config["exporters"]["kafka"]["producer"]["max_message_bytes"] == MESSAGE_BYTES
    http = config["receivers"]["otlp"]["protocols"]["http"]
    assert http["max_request_body_size"] < MESSAGE_BYTES
