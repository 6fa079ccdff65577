"""Real clients: OpenTelemetry's exporters, ours, cirron-sdk itself, and curl."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

from cirron_otel.collector.receiver.auth import Tokens
from cirron_otel.collector.receiver.consumer import (
    BodyEncoding,
    ConsumeResult,
    Reason,
    ReceivedSignal,
    RefusalError,
)
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.errors import MisconfiguredError, RefusedError, UnreachableError
from cirron_otel.core.delivery.retry_policy import Backoff
from cirron_otel.core.targets.otlp.config import OtlpCompression, OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.pusher import Pusher
from tests.conftest import leave_out
from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.recorder.record import environment
from tests.kit.spools.deliveries import (
    KEY,
    Process,
    batch_of,
    cirron_target,
)

from .fake_intake import FakeIntake
from .http_serving import (
    BATCH,
    JSON,
    Blobs,
    Served,
    serving,
    traces,
    until,
)

TOKEN = {"Authorization": "Bearer secret-token"}


@pytest.fixture
def server() -> Iterator[Served]:
    with serving(auth=Tokens(["secret-token", KEY]), blobs=Blobs()) as served:
        yield served


def spans(count: int) -> list[ReadableSpan]:
    provider = TracerProvider()
    tracer = provider.get_tracer("t")
    made = [tracer.start_span(f"s{number}") for number in range(count)]
    for span in made:
        span.end()
    return made  # type: ignore[return-value]


@pytest.mark.parametrize("compression", list(Compression))
def test_opentelemetry_spans(server: Served, compression: Compression) -> None:
    exporter = OTLPSpanExporter(f"{server.url}/v1/traces", headers=TOKEN, compression=compression)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for number in range(3):
        provider.get_tracer("t").start_span(f"s{number}").end()
    provider.shutdown()

    found = [ExportTraceServiceRequest.FromString(body) for body in server.intake.bodies]
    assert [each.resource_spans[0].scope_spans[0].spans[0].name for each in found] == [
        "s0",
        "s1",
        "s2",
    ]
    assert {each.signal for each in server.intake.requests} == {ReceivedSignal.TRACES}


def test_opentelemetry_metrics_and_logs(server: Served) -> None:
    metrics = OTLPMetricExporter(
        f"{server.url}/v1/metrics", headers=TOKEN, compression=Compression.Gzip
    )
    meters = MeterProvider([PeriodicExportingMetricReader(metrics, 3_600_000)])
    meters.get_meter("t").create_counter("c").add(1)
    meters.shutdown()
    logs = LoggerProvider()
    logs.add_log_record_processor(
        SimpleLogRecordProcessor(OTLPLogExporter(f"{server.url}/v1/logs", headers=TOKEN))
    )
    logs.get_logger("t").emit(body="hello")
    logs.shutdown()

    first, second = server.intake.requests
    assert (first.signal, second.signal) == (ReceivedSignal.METRICS, ReceivedSignal.LOGS)
    points = ExportMetricsServiceRequest.FromString(first.body).resource_metrics
    assert points[0].scope_metrics[0].metrics[0].name == "c"
    records = ExportLogsServiceRequest.FromString(second.body).resource_logs
    assert records[0].scope_logs[0].log_records[0].body.string_value == "hello"


def test_opentelemetry_exporter_retries_after_unavailable(server: Served) -> None:
    server.intake.refusal = RefusalError(Reason.UNAVAILABLE, "the disk is full", 1)
    exporter = OTLPSpanExporter(f"{server.url}/v1/traces", headers=TOKEN)

    def recover() -> bool:
        if server.receiver.answered["/v1/traces", 503]:
            server.intake.refusal = None
        return server.intake.refusal is None

    waiter = threading.Thread(target=until, args=(recover,))
    waiter.start()
    assert exporter.export(spans(5)) is SpanExportResult.SUCCESS
    waiter.join()
    assert len(server.intake.requests) == 1


def test_opentelemetry_exporter_does_not_retry_refused_requests(server: Served) -> None:
    right, wrong = f"{server.url}/v1/traces", f"{server.url}/v1/trace"
    server.intake.refusal = RefusalError(Reason.INVALID, "bad data")
    for url, headers in ((right, TOKEN), (wrong, TOKEN), (right, {})):
        exporter = OTLPSpanExporter(url, headers=headers)
        assert exporter.export(spans(1)) is SpanExportResult.FAILURE
    assert server.receiver.answered == {
        ("/v1/traces", 400): 1,
        ("-", 404): 1,
        ("/v1/traces", 401): 1,
    }


@pytest.mark.parametrize("compression", list(OtlpCompression))
@pytest.mark.parametrize("protocol", [OtlpProtocol.HTTP_PROTOBUF, OtlpProtocol.HTTP_JSON])
def test_our_exporter(server: Served, protocol: OtlpProtocol, compression: OtlpCompression) -> None:
    config = OtlpConfig(
        protocol,
        f"{server.url}/v1/traces",
        headers={"authorization": TOKEN["Authorization"], "x-scope-orgid": "team"},
        compression=compression,
    )
    with Pusher(config, retry=False) as pusher:
        result = pusher.push(traces(20))
        assert (result.accepted_spans, result.warnings) == (20, ())
        server.intake.answer = ConsumeResult(3, "three are too old")
        result = pusher.push(traces(20))
        assert (result.accepted_spans, result.rejected_spans) == (17, 3)
        assert result.error_message == "three are too old"
        server.intake.refusal = RefusalError(Reason.INVALID, "no good")
        with pytest.raises(RefusedError, match=r"400 Bad Request \(no good\)"):
            pusher.push(traces())
        server.intake.refusal = RefusalError(Reason.BUSY, "later", 7)
        with pytest.raises(UnreachableError, match=r"429.*asked to wait 7 s"):
            pusher.push(traces())

    first = server.intake.requests[0]
    assert first.headers == {"x-scope-orgid": "team"}
    if protocol is OtlpProtocol.HTTP_PROTOBUF:
        assert first.body == traces(20)
    else:
        assert first.encoding is BodyEncoding.JSON
        assert len(json.loads(first.body)["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 20


def test_pusher_splits_oversized_requests() -> None:
    with serving(FakeIntake(max_body_bytes=3000)) as server:
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, f"{server.url}/v1/traces")
        with Pusher(config, backoff=Backoff(0.01, 0.01)) as pusher:
            result = pusher.push(traces(300))
        assert result.accepted_spans == 300
        assert max(map(len, server.intake.bodies)) <= 3000
        assert server.receiver.answered["/v1/traces", 413] >= 1


def test_our_delivery_to_cirron(tmp_path: Path) -> None:
    """Batches byte for byte, then their files: a small one whole, a large one in parts."""
    blobs = Blobs()
    with serving(auth=Tokens([KEY]), blobs=blobs, staging=tmp_path / "parts") as server:
        process = Process(tmp_path)
        small, large = b"small", bytes(range(256)) * 4 * 4096 * 3
        records = [process.snapshot("a" * 32, small), process.snapshot("b" * 32, large)]
        names = [process.seal(), process.seal(records)]
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        assert delivery.finish(60)
        process.owner.release()

        assert server.intake.bodies == [(process.paths.spool / name).read_bytes() for name in names]
        assert [each.signal for each in server.intake.requests] == [ReceivedSignal.CIRRON] * 2
        assert server.intake.requests[0].headers == {
            "x-cirron-sdk-version": "test",
            "x-cirron-batch-id": process.sealed[0],
        }
        assert blobs.files == {
            ("a" * 32, "weights.safetensors"): small,
            ("b" * 32, "weights.safetensors"): large,
        }
        assert server.receiver.answered["blobs", 308] == 2


def test_our_batches_that_cirron_refuses(server: Served) -> None:
    data = json.dumps(batch_of("e" * 32, 10**18, 1)).encode()
    batch = SealedBatch(f"{10**18:020d}-{'e' * 32}.json", data)
    target = cirron_target(server.url)
    target.send([batch])
    server.intake.refusal = RefusalError(Reason.INVALID, "spans is no list")
    with pytest.raises(RefusedError, match="spans is no list"):
        target.send([batch])
    server.intake.refusal = RefusalError(Reason.UNAVAILABLE, "full", 9)
    with pytest.raises(UnreachableError, match="full") as raised:
        target.send([batch])
    assert raised.value.retry_after == 9
    server.receiver._auth = Tokens(["another"])
    with pytest.raises(MisconfiguredError, match="401"):
        target.send([batch])
    target.close()


SDK = """
import sys
import cirron as ci
ci.profile(snapshots=None, flush_interval=0.2)
for epoch in ci.epochs(range(2)):
    for batch in ci.batches(range(3)):
        with ci.scope("step", index=batch):
            ci.mark("loss", 0.5)
sys.stdin.readline()
ci.shutdown()
"""
"""Only its flush thread sends: neither what flush() seals, nor what it ends with."""


@pytest.mark.parametrize("ingest", [None, "/v1/traces", "/api/traces"])
def test_the_real_cirron_sdk(tmp_path: Path, ingest: str | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(SDK)
    with serving(auth=Tokens(["ck_live_key"])) as server:
        variables = {
            "CIRRON_API_KEY": "ck_live_key",
            "CIRRON_API_ENDPOINT": server.url,
            "HOME": str(tmp_path),
        } | ({"CIRRON_INGEST_PATH": ingest} if ingest else {})
        try:
            python = environment("0.3.0")
        except EnvironmentUnavailableError as error:
            leave_out(str(error))
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OTEL_", "CIRRON_", "PYTHON", "RANK", "TRACE"))
        }
        process = subprocess.Popen(
            [python, "-I", script],
            cwd=tmp_path,
            env={**kept, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: names(server).count("epoch") == 2 or process.poll() is not None)
        _, told = process.communicate("\n", timeout=60)
        assert (process.returncode, told) == (0, "")

        assert names(server).count("step") == 6
        route = ingest or "/api/traces"
        assert set(server.receiver.answered) == {(route, 202)}
        spooled = tmp_path.glob(".cirron/spool/*.json")
        on_disk = {path.stem.partition("-")[2]: path.read_bytes() for path in spooled}
        for each in server.intake.requests:
            assert each.signal is ReceivedSignal.CIRRON
            assert each.headers["x-cirron-sdk-version"] == "0.3.0"
            assert each.body == on_disk[each.headers["x-cirron-batch-id"]]


def names(server: Served) -> list[str]:
    """Those of the spans of all batches that came."""
    batches = [json.loads(body) for body in server.intake.bodies]
    return [span["name"] for batch in batches for span in batch["spans"]]


def curl(*arguments: str, data: bytes | None = None) -> tuple[int, bytes]:
    """The status and the body."""
    command = ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *arguments]
    if data is not None:
        command += ["--data-binary", "@-"]
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), body


def test_curl(server: Served, tmp_path: Path) -> None:
    token = ("-H", f"Authorization: {TOKEN['Authorization']}")
    as_json = (*token, "-H", f"Content-Type: {JSON}")
    url, batch = f"{server.url}/v1/traces", json.dumps(BATCH).encode()

    assert curl(*as_json, url, data=b'{"resourceSpans":[]}') == (200, b"{}")
    status, body = curl(*as_json, url, data=batch)
    assert (status, json.loads(body)) == (202, {"batch_id": BATCH["batch_id"]})
    for coding, packed in (
        ("gzip", gzip.compress(batch)),
        ("zstd", zstandard.compress(batch)),
    ):
        header = ("-H", f"Content-Encoding: {coding}")
        assert curl(*as_json, *header, url, data=packed)[0] == 202
        assert (
            curl(*as_json, *header, "-H", "Transfer-Encoding: chunked", url, data=packed)[0] == 202
        )
    assert server.intake.bodies[1:] == [batch] * 5

    status, body = curl(*token, url, data=batch)
    assert (status, json.loads(body)["code"]) == (415, 3)
    status, body = curl(url, data=batch)
    assert (status, json.loads(body)["code"]) == (401, 16)
    large = bytes(3_000_000)
    assert curl(*as_json, url, data=large)[0] == 413
    assert curl(*as_json, "-H", "Expect: 100-continue", url, data=batch)[0] == 202
    assert curl(f"{server.url}/health")[0] == 200
    assert curl("--http1.0", f"{server.url}/ready")[0] == 200
    assert curl("--http2", f"{server.url}/ready")[0] == 200

    file = tmp_path / "weights.safetensors"
    file.write_bytes(large)
    path = f"{url}/blobs/snapshots/{'a' * 32}/{file.name}"
    assert curl(*token, "-T", str(file), path)[0] == 201
    status, head = curl(*token, "-I", path)
    assert status == 200
    assert b"content-length: 3000000" in head.lower()
