"""OTLP/gRPC over real channels: every rule of the specification, and hostile clients."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import grpc
import grpc.aio
import pytest
import zstandard
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from cirron_otel.collector.receiver.auth import Tokens
from cirron_otel.collector.receiver.consumer import (
    BodyEncoding,
    ConsumeResult,
    Reason,
    ReceivedSignal,
    RefusalError,
)
from cirron_otel.collector.receiver.grpc.http2_headers import ENCODING
from tests.kit.servers.servers import traces

from .fake_intake import FakeIntake
from .grpc_clients import (
    LOGS,
    METRICS,
    TRACES,
    Refusal,
    Server,
    against_server,
    until,
)

GZIP, DEFLATE = grpc.Compression.Gzip, grpc.Compression.Deflate
NONE = grpc.Compression.NoCompression


def finished_spans(count: int) -> list[ReadableSpan]:
    tracer = TracerProvider().get_tracer("stock")
    spans: list[ReadableSpan] = []
    for number in range(count):
        span = tracer.start_span("step", attributes={"number": number})
        span.add_event("mark", {"value": 0.5})
        span.end()
        assert isinstance(span, ReadableSpan)
        spans.append(span)
    return spans


@pytest.mark.parametrize("compression", [NONE, GZIP, DEFLATE])
def test_the_stock_exporter_of_spans(compression: grpc.Compression) -> None:
    spans = finished_spans(500)

    async def test(server: Server, intake: FakeIntake) -> None:
        endpoint = f"http://{server.address}"
        exporter = OTLPSpanExporter(endpoint, insecure=True, compression=compression)
        assert await asyncio.to_thread(exporter.export, spans) is SpanExportResult.SUCCESS
        exporter.shutdown()

    (request,) = against_server(test).requests
    assert request.body == encode_spans(spans).SerializeToString()
    assert (request.signal, request.encoding) == (ReceivedSignal.TRACES, BodyEncoding.PROTOBUF)
    assert request.received_ns > (spans[-1].end_time or 0)


def test_the_stock_exporters_of_metrics_and_logs() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        endpoint = f"http://{server.address}"
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint, insecure=True))
        provider = MeterProvider([reader])
        provider.get_meter("stock").create_counter("steps").add(3)
        await asyncio.to_thread(provider.shutdown)
        logs = OTLPLogExporter(endpoint, insecure=True)
        await asyncio.to_thread(logs.export, [])
        logs.shutdown()

    metrics, logs = against_server(test).requests
    assert (metrics.signal, logs.signal) == (ReceivedSignal.METRICS, ReceivedSignal.LOGS)
    message = ExportMetricsServiceRequest.FromString(metrics.body)
    assert message.resource_metrics[0].scope_metrics[0].metrics[0].name == "steps"
    assert logs.body == b""


@pytest.mark.parametrize("compression", [NONE, GZIP, DEFLATE])
@pytest.mark.parametrize(
    "body", [b"", b"\xff\xff garbage", traces(2000), b"\x78\x01", b"\x78\x9c\x01", b"\x28\xb5\x2f"]
)
def test_bytes_are_handed_on_as_they_came(body: bytes, compression: grpc.Compression) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        assert await server.send(body, compression=compression) == b""

    assert against_server(test).bodies == [body]


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.compress),
        ("snappy", lambda body: bytes(cramjam.snappy.compress(body))),
        ("gzip", lambda body: gzip.compress(body[:99]) + gzip.compress(body[99:])),
    ],
    ids=["gzip", "deflate", "zstd", "snappy", "members"],
)
def test_compressed_bodies(encoding: str, compress: Callable[[bytes], bytes]) -> None:
    """Without an encoding in the headers they are no OTLP, and handed on as they came."""
    body = traces(5000)

    async def test(server: Server, intake: FakeIntake) -> None:
        await server.send(compress(body), metadata=[(ENCODING, encoding)])
        await server.send(body, metadata=[(ENCODING, encoding)])  # any message may be plain
        await server.send(gzip.compress(body, mtime=0))

    assert against_server(test).bodies == [body, body, gzip.compress(body, mtime=0)]


@pytest.mark.parametrize(
    "body",
    [b"\x1f\x8b", gzip.compress(b"abc")[:-1], gzip.compress(b"abc" * 99) + b"!"],
    ids=["magic alone", "cut off", "rest behind it"],  # the bytes hold the time, by the second
)
def test_damaged_gzip_body_is_an_invalid_argument(body: bytes) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        refusal = await server.refusal(body, metadata=[(ENCODING, "gzip")])
        assert (refusal.code, refusal.retry_after_s) == ("INVALID_ARGUMENT", None)
        assert "gzip" in refusal.message

    assert against_server(test).requests == []


@pytest.mark.parametrize("compression", [NONE, GZIP, DEFLATE])
def test_size_limit_applies_to_the_decompressed_body(compression: grpc.Compression) -> None:
    limit = 100_000

    async def test(server: Server, intake: FakeIntake) -> None:
        await server.send(b"\x0a" * limit, compression=compression)
        refusal = await server.refusal(b"\x0a" * (limit + 1), compression=compression)
        assert (refusal.code, refusal.retry_after_s) == ("RESOURCE_EXHAUSTED", None)

    assert len(against_server(test, FakeIntake(max_body_bytes=limit)).requests) == 1


@pytest.mark.parametrize(
    ("reason", "asked", "code", "after"),
    [
        (Reason.INVALID, None, "INVALID_ARGUMENT", None),
        (Reason.INVALID, 3.0, "INVALID_ARGUMENT", None),
        (Reason.TOO_LARGE, None, "RESOURCE_EXHAUSTED", None),
        (Reason.BUSY, None, "UNAVAILABLE", 1.0),
        (Reason.BUSY, 0.25, "UNAVAILABLE", 0.25),
        (Reason.UNAVAILABLE, 30.0, "UNAVAILABLE", 30.0),
        (Reason.UNAVAILABLE, -1.0, "UNAVAILABLE", 0.0),
        (Reason.UNSUPPORTED, None, "UNIMPLEMENTED", None),
    ],
)
@pytest.mark.parametrize("method", [TRACES, METRICS, LOGS])
def test_refusals(
    reason: Reason, asked: float | None, code: str, after: float | None, method: str
) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        intake.refusal = RefusalError(reason, "not so, ≠ that\nway", asked)
        assert await server.refusal(b"", method) == Refusal(code, "not so, ≠ that\nway", after)
        intake.refusal = None
        await server.send(b"", method)

    against_server(test)


@pytest.mark.parametrize("character", ["a", "%", "é", "語", "😀"])
def test_a_long_message_is_cut(character: str) -> None:
    """A client that receives more trailing metadata than it accepts reports another error."""

    async def test(server: Server, intake: FakeIntake) -> None:
        intake.refusal = RefusalError(Reason.BUSY, character * 100_000)
        refusal = await server.refusal(b"")
        assert (refusal.code, set(refusal.message)) == ("UNAVAILABLE", {character})

    against_server(test)


def test_internal_error_is_logged_but_not_sent_to_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        intake.refusal = ValueError("s3cret")
        refusal = await server.refusal(b"")
        assert (refusal.code, refusal.retry_after_s) == ("UNAVAILABLE", 1.0)
        assert "s3cret" not in refusal.message

    against_server(test)
    assert "ValueError" in caplog.text


@pytest.mark.parametrize(
    ("method", "response", "name"),
    [
        (TRACES, ExportTraceServiceResponse, "rejected_spans"),
        (METRICS, ExportMetricsServiceResponse, "rejected_data_points"),
        (LOGS, ExportLogsServiceResponse, "rejected_log_records"),
    ],
)
@pytest.mark.parametrize(
    "answer",
    [ConsumeResult(), ConsumeResult(3, "bad ids"), ConsumeResult(0, "old"), ConsumeResult(2)],
)
def test_partial_success(method: str, response: Any, name: str, answer: ConsumeResult) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        intake.answer = answer
        message = response.FromString(await server.send(b"", method))
        assert message.HasField("partial_success") == (answer != ConsumeResult())
        assert getattr(message.partial_success, name) == answer.rejected
        assert message.partial_success.error_message == answer.message

    against_server(test)


@pytest.mark.parametrize(
    "method",
    [
        TRACES.replace("Export", "Import"),
        "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/",
    ],
)
def test_unserved_methods_are_unimplemented(method: str) -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        assert (await server.refusal(b"", method)).code == "UNIMPLEMENTED"

    assert against_server(test).requests == []


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        ("Bearer right", True),
        ("bearer right", True),
        ("Bearer wrong", False),
        ("Basic right", False),
        ("Bearer ", False),
        (None, False),
    ],
)
def test_tokens(header: str | None, taken: bool) -> None:
    metadata = [("authorization", header)] if header is not None else []

    async def test(server: Server, intake: FakeIntake) -> None:
        if taken:
            await server.send(b"", metadata=metadata)
            return
        refusal = await server.refusal(b"a" * 4000, metadata=metadata)
        assert (refusal.code, refusal.retry_after_s) == ("UNAUTHENTICATED", None)
        assert "wrong" not in refusal.message
        assert intake.most_in_flight == 0  # it was not even read

    assert len(against_server(test, auth=Tokens(["right"])).requests) == taken


def test_tenant_and_run_headers_are_passed_to_the_intake() -> None:
    async def test(server: Server, intake: FakeIntake) -> None:
        sent = {"x-scope-orgid": "a", "x-cirron-run-id": "r 1", "x-cirronic": "no", "x-run": "no"}
        metadata: list[tuple[str, str | bytes]] = [*sent.items(), ("x-other-bin", b"\xff")]
        metadata.append(("authorization", "Bearer s3cret"))
        await server.send(b"", metadata=metadata)

    (request,) = against_server(test).requests
    assert request.headers == {"x-scope-orgid": "a", "x-cirron-run-id": "r 1"}


def test_no_room_for_bytes_in_flight() -> None:
    """One request too many comes back with a time to wait, and is taken when there is room."""
    intake = FakeIntake(room=250_000)

    async def test(server: Server, intake: FakeIntake) -> None:
        intake.hold = asyncio.Event()
        async with server.channel() as channel:
            first = [channel.unary_unary(TRACES)(bytes(100_000)) for _ in range(2)]
            await until(lambda: intake.waiting == 2)
            refusal = await server.refusal(bytes(100_000))
            assert (refusal.code, refusal.retry_after_s) == ("UNAVAILABLE", 1.0)
            small = await server.refusal(bytes(100_000), compression=GZIP)
            assert small.code == "UNAVAILABLE"
            intake.hold.set()
            await asyncio.gather(*first)
        await server.send(bytes(100_000))

    assert len(against_server(test, intake).requests) == 3
