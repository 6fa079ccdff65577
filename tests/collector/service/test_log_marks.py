"""OTLP logs: records that are marks are kept as marks, the others told to be rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from cirron_otel.core.otlp.json_logs import logs_from_json
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.translator.logs.log_marks import logs_of
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.otlp_sink import otlp_sink
from tests.kit.servers.serving import serving, spans_of
from tests.kit.spools.comparing import assert_same, batches, cirron_otel

from .test_handing_on import configuration
from .test_running import post

PROTOBUF, JSON = "application/x-protobuf", "application/json"


def marks_of(folder: Path) -> list[dict[str, Any]]:
    """All marks in the spool of a collector, in the order of their time."""
    found = [mark for batch in batches(folder).values() for mark in batch["marks"]]
    return sorted(found, key=lambda mark: int(mark["ts_ns"]))


@pytest.mark.parametrize("way", ["grpc", "http"])
def test_of_a_stock_sdk(way: str, tmp_path: Path) -> None:
    """Spans and events of one program: the marks stand on its spans, in rows and on the wire."""
    (sink_at,) = free_endpoints(1)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    to = configuration(tmp_path, f"{{type: otlp, endpoint: 'http://{sink_at}'}}")
    with (
        otlp_sink(sink_at) as sink,
        serving(tmp_path / "data", "--config", to, "--storage", url) as here,
    ):
        resource = Resource({"service.name": "trainer"})
        exporter: Any = GrpcExporter(endpoint=f"http://{here.grpc}", insecure=True)
        if way == "http":
            exporter = HttpExporter(endpoint=f"{here.http}/v1/logs")
        logs, traces = LoggerProvider(resource=resource), TracerProvider(resource=resource)
        logs.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        behind = OTLPSpanExporter(endpoint=f"http://{here.grpc}", insecure=True)
        traces.add_span_processor(SimpleSpanProcessor(behind))
        logger, tracer = logs.get_logger("test", "1.0"), traces.get_tracer("test")
        with tracer.start_as_current_span("step") as span:
            context = trace.set_span_in_context(span)
            for number in range(3):
                logger.emit(
                    LogRecord(
                        timestamp=1_700_000_000_000_000_000 + number,
                        context=context,
                        event_name="loss",
                        body=0.5 + number,
                        attributes={"step": number},
                        severity_number=SeverityNumber.INFO,
                    )
                )
            logger.emit(LogRecord(context=context, body="a line that is no mark"))
        logs.shutdown()
        traces.shutdown()
        assert here.end() == 0
    (step,) = spans_of(tmp_path / "data")
    marks = marks_of(tmp_path / "data")
    assert [(mark["name"], mark["value"], mark["span_id"]) for mark in marks] == [
        ("loss", 0.5 + number, step["id"]) for number in range(3)
    ]
    assert {mark["otel"]["log"]["severity_number"] for mark in marks} == {9}
    with Storage.open(url, create=False) as storage:
        rows = storage.database.rows('SELECT "spanId", "name", "valueFloat" FROM "TraceMark"')
    assert sorted(map(tuple, rows)) == [(step["id"], "loss", 0.5 + n) for n in range(3)]
    assert {span.trace_id.hex() for _, span in sink.spans} == {step["otel"]["trace_id"]}
    carriers = [span for _, span in sink.spans if span.name == "cirron.marks"]
    assert {span.parent_span_id.hex() for span in carriers} == {step["id"][:16]}
    assert sorted(event.name for span in carriers for event in span.events) == ["loss"] * 3
    file = tmp_path / "out.jsonl"
    cirron_otel("convert", tmp_path / "data", file)
    cirron_otel("convert", file, tmp_path / "back")
    of_marks = {name: each for name, each in batches(tmp_path / "data").items() if each["marks"]}
    back = {name: each for name, each in batches(tmp_path / "back").items() if each["marks"]}
    assert_same(back, of_marks)


RECORDS = {
    "resourceLogs": [
        {
            "resource": {"attributes": [{"key": "host", "value": {"stringValue": "h"}}]},
            "scopeLogs": [
                {
                    "scope": {"name": "s", "version": "1"},
                    "logRecords": [
                        {
                            "timeUnixNano": "5", "eventName": "loss", "body": {"intValue": "3"},
                            "traceId": "5b8efff798038103d269b633813fc60c",
                            "spanId": "eee19b7ec3c1b174", "severityText": "INFO",
                        },
                        {"timeUnixNano": "6", "body": {"stringValue": "a line"}},
                        {"timeUnixNano": "7", "eventName": "outside"},
                    ],
                }
            ],
        }
    ]
}  # fmt: skip


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_log_records_that_are_not_marks_are_rejected_and_others_stored(
    kind: str, tmp_path: Path
) -> None:
    message, lost = logs_from_json(json.dumps(RECORDS).encode())
    assert lost == []
    body = json.dumps(RECORDS).encode() if kind == JSON else message.SerializeToString()
    with serving(tmp_path / "data") as here:
        for _ in range(2):  # the second is a duplicate
            status, said = post(f"{here.http}/v1/logs", body, kind)
            assert status == 200
            if kind == JSON:
                partial = json.loads(said)["partialSuccess"]
                assert partial["rejectedLogRecords"] == "2"
                assert partial["errorMessage"].startswith("2 log records are not marks")
            else:
                answer = ExportLogsServiceResponse.FromString(said)
                assert answer.partial_success.rejected_log_records == 2
        assert here.end() == 0
    (batch,) = batches(tmp_path / "data").values()
    del message.resource_logs[0].scope_logs[0].log_records[1:]
    assert logs_of(batch) == message.resource_logs[0]
    assert (batch["marks"][0]["value_type"], batch["marks"][0]["value"]) == ("int", 3)


def test_all_marks_get_a_plain_answer(tmp_path: Path) -> None:
    message, _ = logs_from_json(json.dumps(RECORDS).encode())
    del message.resource_logs[0].scope_logs[0].log_records[1:]
    with serving(tmp_path / "data") as here:
        body = message.SerializeToString()
        assert post(f"{here.http}/v1/logs", body, PROTOBUF) == (200, b"")
        assert post(f"{here.http}/v1/logs", LogsData().SerializeToString(), PROTOBUF) == (200, b"")
        assert here.end() == 0
    assert len(marks_of(tmp_path / "data")) == 1


BAD = {
    "no protobuf": (b"\xff\xff", PROTOBUF),
    "no JSON": (b"{", JSON),
    "an id that is none": (
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"traceId":"x"}]}]}]}', JSON,
    ),
}  # fmt: skip


def test_bad_logs_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as here:
        statuses = {name: post(f"{here.http}/v1/logs", *each)[0] for name, each in BAD.items()}
        assert here.end() == 0
    assert statuses == dict.fromkeys(BAD, 400)


@pytest.mark.parametrize(("told", "status"), [("accept", 200), ("refuse", 404)])
def test_logs_that_are_not_wanted(told: str, status: int, tmp_path: Path) -> None:
    path = tmp_path / "collector.yaml"
    path.write_text(f"receivers: {{signals: {{logs: {told}}}}}\n")
    body = logs_from_json(json.dumps(RECORDS).encode())[0].SerializeToString()
    with serving(tmp_path / "data", "--config", str(path)) as here:
        assert post(f"{here.http}/v1/logs", body, PROTOBUF)[0] == status
        assert here.end() == 0
    assert not list((tmp_path / "data").glob("spool/*.json"))
