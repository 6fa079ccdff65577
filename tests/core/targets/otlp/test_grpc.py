"""Pushes over OTLP/gRPC to a real server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from cirron_otel.core.delivery.errors import PushResult, RefusedError, UnreachableError
from cirron_otel.core.delivery.retry_policy import Backoff
from cirron_otel.core.targets.otlp.config import OtlpCompression, OtlpConfig
from cirron_otel.core.targets.otlp.pusher import Pusher
from cirron_otel.errors import EndpointError, UsageError
from tests.kit.backends.process import free_port
from tests.kit.servers.servers import (
    Certificates,
    GrpcReceiver,
    RecordedStop,
    fails,
    grpc_receiver,
    span_ids,
    traces,
)

QUICK = Backoff(first=0.01, longest=0.02)
CODES = grpc.StatusCode


def config_for(server: GrpcReceiver, **changes: Any) -> OtlpConfig:
    return replace(OtlpConfig(endpoint=f"127.0.0.1:{server.port}", timeout=20), **changes)


def push(server: GrpcReceiver, request: bytes, options: Any = None, **changes: Any) -> PushResult:
    with Pusher(config_for(server, **changes), backoff=QUICK, **(options or {})) as pusher:
        return pusher.push(request)


def retry_info(seconds: float) -> bytes:
    delay = Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    return bytes(RetryInfo(retry_delay=delay).SerializeToString())


def details(*messages: Any) -> bytes:
    status = Status(code=8)
    for message in messages:
        packed = AnyMessage()
        packed.Pack(message)
        status.details.append(packed)
    return bytes(status.SerializeToString())


@contextmanager
def counting_proxy(port: int) -> Iterator[tuple[int, list[int]]]:
    """A TCP proxy to `port`; what it yields is its own port, and how much each read forwarded."""
    counted: list[int] = []

    def pump(source: socket.socket, target: socket.socket, count: bool) -> None:
        try:
            while data := source.recv(65536):
                if count:
                    counted.append(len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            back = threading.Thread(target=pump, args=(server, client, False))
            back.start()
            pump(client, server, True)
            back.join()
            client.close()
            server.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], counted
        thread.join()


@pytest.mark.parametrize("compression", [OtlpCompression.NONE, OtlpCompression.GZIP])
def test_request_bytes_and_headers_arrive_unchanged(compression: OtlpCompression) -> None:
    request = traces(20_000)
    with grpc_receiver() as server, counting_proxy(server.port) as (port, counted):
        endpoint = f"127.0.0.1:{port}"
        headers = {"x-tenant": "a", "authorization": "Bearer abc"}
        result = push(server, request, compression=compression, headers=headers, endpoint=endpoint)
    assert result == PushResult(accepted_spans=20_000, requests=1)
    (call,) = server.calls
    assert call.body == request
    assert call.metadata["x-tenant"] == "a"
    assert call.metadata["authorization"] == "Bearer abc"
    assert str(call.metadata["user-agent"]).startswith("cirron-otel/")
    assert (sum(counted) < len(request) / 2) == (compression is OtlpCompression.GZIP)


def test_partial_success() -> None:
    def partial(rejected: int, message: str) -> Any:
        body = ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(
                rejected_spans=rejected, error_message=message
            )
        )
        return lambda *_: body.SerializeToString()

    with grpc_receiver(partial(0, ""), partial(3, "bad\nids"), partial(0, "old")) as server:
        assert push(server, traces(5)) == PushResult(5, requests=1)
        assert push(server, traces(5)) == PushResult(2, 3, "bad ids", requests=1)
        assert push(server, traces(5)) == PushResult(5, 0, "old", requests=1)


def test_unreadable_response_is_reported_as_a_warning() -> None:
    with grpc_receiver(lambda *_: b"\xff\xff") as server:
        assert push(server, traces(5)) == PushResult(
            5, warnings=("the answer to accepted spans cannot be read",), requests=1
        )


RETRYABLE = {
    CODES.CANCELLED,
    CODES.DEADLINE_EXCEEDED,
    CODES.ABORTED,
    CODES.OUT_OF_RANGE,
    CODES.UNAVAILABLE,
    CODES.DATA_LOSS,
}


@pytest.mark.parametrize("code", [code for code in CODES if code is not CODES.OK])
def test_only_retryable_status_codes_are_retried(code: grpc.StatusCode) -> None:
    request = traces(4)
    with grpc_receiver(fails(code, "not now"), fails(code, "not now")) as server:
        if code in RETRYABLE:
            assert push(server, request) == PushResult(4, requests=1)
            assert [call.body for call in server.calls] == [request] * 3
        else:
            with pytest.raises(RefusedError) as caught:
                push(server, request)
            assert len(server.calls) == 1
            assert f"127.0.0.1:{server.port} did not accept: {code.name} (not now)" in str(
                caught.value
            )
            assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    "metadata",
    [
        {"google_rpc_retryinfo_bin": retry_info(7.25)},
        {
            "grpc_status_details_bin": details(
                ErrorInfo(reason="busy"), RetryInfo.FromString(retry_info(7.25))
            )
        },
    ],
)
@pytest.mark.parametrize("code", [CODES.RESOURCE_EXHAUSTED, CODES.UNAVAILABLE])
def test_retry_info_is_obeyed(code: grpc.StatusCode, metadata: dict[str, bytes]) -> None:
    stop = RecordedStop()
    with grpc_receiver(fails(code, "queue is full", **metadata)) as server:
        assert push(server, traces(4), {"stop": stop}) == PushResult(4, requests=1)
    assert stop.waits == [7.25]
    assert len(server.calls) == 2


@pytest.mark.parametrize("code", [CODES.INVALID_ARGUMENT, CODES.INTERNAL])
def test_retry_info_makes_no_other_code_retryable(code: grpc.StatusCode) -> None:
    answer = fails(code, "no", google_rpc_retryinfo_bin=retry_info(1))
    with grpc_receiver(answer) as server, pytest.raises(RefusedError):
        push(server, traces(4))
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"google_rpc_retryinfo_bin": b"\xff\xff"},
        {"grpc_status_details_bin": b"\xff\xff"},
        {"grpc_status_details_bin": details(ErrorInfo(reason="quota"))},
    ],
)
def test_garbled_or_missing_retry_info_causes_no_retry(metadata: dict[str, bytes]) -> None:
    answer = fails(CODES.RESOURCE_EXHAUSTED, "quota", **metadata)
    with grpc_receiver(answer) as server, pytest.raises(RefusedError, match="RESOURCE_EXHAUSTED"):
        push(server, traces(4))
    assert len(server.calls) == 1


def test_waiting_beyond_the_deadline_is_pointless() -> None:
    stop = RecordedStop()
    answer = fails(CODES.UNAVAILABLE, "down", google_rpc_retryinfo_bin=retry_info(100))
    with (
        grpc_receiver(answer) as server,
        pytest.raises(UnreachableError, match="given up after 1 attempts, asked to wait 100 s"),
    ):
        push(server, traces(4), {"stop": stop})
    assert stop.waits == []


def test_connection_refused_raises_unreachable_error() -> None:
    config = OtlpConfig(endpoint=f"127.0.0.1:{free_port()}", timeout=20)
    with (
        Pusher(config, deadline=30, backoff=Backoff(first=60, longest=60)) as pusher,
        pytest.raises(UnreachableError) as caught,
    ):
        pusher.push(traces(1))
    assert "did not accept: UNAVAILABLE" in str(caught.value)
    assert "Connection refused" in str(caught.value)


def test_receiver_that_starts_later_is_reached() -> None:
    """Twice, for the channel must connect anew at once and not wait with gRPC's own backoff."""
    port, request = free_port(), traces(9)
    with ExitStack() as stack:
        servers: list[GrpcReceiver] = []

        def start() -> None:
            servers.append(stack.enter_context(grpc_receiver(port=port)))

        stop = RecordedStop(then=[lambda: None, lambda: None, start])
        config = OtlpConfig(endpoint=f"127.0.0.1:{port}", timeout=20)
        with Pusher(config, stop=stop, deadline=None) as pusher:
            assert pusher.push(request).accepted_spans == 9
            assert len(stop.waits) == 3
            stack.pop_all().close()  # the receiver goes away, and another comes
            stop.then = [start]
            assert pusher.push(request).accepted_spans == 9
    assert [[call.body for call in server.calls] for server in servers] == [[request]] * 2


def test_a_server_that_does_not_answer_in_time_is_asked_again() -> None:
    hold = threading.Event()

    def late(request: bytes, context: grpc.ServicerContext) -> bytes:
        hold.wait(60)
        return b""

    stop = RecordedStop()
    with grpc_receiver(late, late) as server:
        try:
            result = push(server, traces(3), {"stop": stop}, timeout=0.5)
            assert result == PushResult(3, requests=1)
        finally:
            hold.set()
    # On a busy machine, others than the first two may be too late.
    assert 3 <= len(server.calls) <= len(stop.waits) + 1


def test_an_attempt_ends_with_the_deadline() -> None:
    hold = threading.Event()

    def never(request: bytes, context: grpc.ServicerContext) -> bytes:
        hold.wait(60)
        return b""

    with grpc_receiver(never, never) as server:
        try:
            with pytest.raises(UnreachableError, match="DEADLINE_EXCEEDED"):
                push(server, traces(3), {"deadline": 0.3}, timeout=float("inf"))
        finally:
            hold.set()


def test_a_request_too_large_for_the_server_is_halved_until_it_fits() -> None:
    """The real refusal of a real server, whose limit is far below our own."""
    request = traces(5000)
    assert len(request) > 100_000
    with grpc_receiver(max_bytes=20_000) as server, Pusher(config_for(server)) as pusher:
        result = pusher.push(request)
        assert result.accepted_spans == 5000
        assert span_ids([call.body for call in server.calls]) == list(range(5000))
        assert result.requests == len(server.calls) < 20
        # What was learnt is kept: nothing of a second push has to be cut again.
        again = pusher.push(request)
    assert again.accepted_spans == 5000
    assert again.requests <= result.requests


def test_our_limit_is_within_the_default_of_grpc_servers() -> None:
    request = traces(200_000)
    assert len(request) > 4 * 1024 * 1024
    with grpc_receiver() as server:
        result = push(server, request)
    assert result == PushResult(200_000, requests=len(server.calls))
    assert sum(len(span_ids([call.body])) for call in server.calls) == 200_000


def test_a_span_too_large_by_itself_is_rejected_and_the_others_go() -> None:
    request = traces(1, "a") + traces(1, "b" * 30_000) + traces(1, "c")
    with grpc_receiver(max_bytes=20_000) as server:
        result = push(server, request)
    assert (result.accepted_spans, result.refused_spans) == (2, 1)
    assert "RESOURCE_EXHAUSTED" in result.refusal
    assert "larger than max" in result.refusal


def test_a_rate_that_a_request_alone_exceeds_is_about_size() -> None:
    answer = fails(
        CODES.RESOURCE_EXHAUSTED,
        "RATE_LIMITED: batch size (9 bytes) exceeds ingestion limit (burst: 8 bytes)",
    )
    with grpc_receiver(answer) as server:
        assert push(server, traces(2)) == PushResult(2, requests=2)


def test_secrets_are_redacted_from_error_messages() -> None:
    answer = fails(CODES.PERMISSION_DENIED, "Bearer s3cret is\nwrong")
    with grpc_receiver(answer) as server, pytest.raises(RefusedError) as caught:
        push(server, traces(1), headers={"authorization": "Bearer s3cret"})
    assert "(*** is wrong); check OTEL_EXPORTER_OTLP_HEADERS" in str(caught.value)


@pytest.mark.parametrize("headers", [{"x": "s3cret\n"}, {"X Y": "s3cret"}, {"x": "s3cret€"}])
def test_headers_that_grpc_cannot_carry(headers: dict[str, str]) -> None:
    with grpc_receiver() as server, pytest.raises(UsageError) as caught:
        push(server, traces(1), headers=headers)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert server.calls == []


def test_binary_headers_are_carried() -> None:
    with grpc_receiver() as server:
        push(server, traces(1), headers={"x-bin": "€\n"})
    assert server.calls[0].metadata["x-bin"] == "€\n".encode()


def test_http_receiver_is_refused_as_not_grpc() -> None:
    """What Go's servers, and so the Collector's and Jaeger's port 4318, answer to gRPC."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        config = OtlpConfig(endpoint=f"127.0.0.1:{listener.getsockname()[1]}", timeout=20)
        with Pusher(config) as pusher, pytest.raises(RefusedError) as caught:
            pusher.push(traces(1))
        thread.join()
    assert "http1.x server" in str(caught.value)
    assert "check OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL" in str(caught.value)


def test_deadline_error_reports_the_last_complete_attempt() -> None:
    """An attempt that the deadline cut short says only that it was cut short."""
    hold = threading.Event()

    def never(request: bytes, context: grpc.ServicerContext) -> bytes:
        hold.wait(60)
        return b""

    with grpc_receiver(fails(CODES.UNAVAILABLE, "restarting"), never, never) as server:
        try:
            with pytest.raises(UnreachableError, match=r"UNAVAILABLE \(restarting\)"):
                push(server, traces(3), {"deadline": 2})
        finally:
            hold.set()


def tls(certificates: Certificates, *, client: bool) -> grpc.ServerCredentials:
    pair = (certificates.read("server.key"), certificates.read("server.pem"))
    return grpc.ssl_server_credentials([pair], certificates.read("ca.pem"), client)


def test_tls_with_a_client_certificate(certificates: Certificates) -> None:
    request = traces(10)
    files = {
        "certificate": certificates.path("ca.pem"),
        "client_certificate": certificates.path("client.pem"),
        "client_key": certificates.path("client.key"),
    }
    with grpc_receiver(credentials=tls(certificates, client=True)) as server:
        assert push(server, request, insecure=False, **files) == PushResult(10, requests=1)
        assert [call.body for call in server.calls] == [request]
        only_the_ca = {"certificate": files["certificate"]}
        with pytest.raises(EndpointError):
            push(server, request, {"deadline": 0.3}, insecure=False, **only_the_ca)
        with pytest.raises(EndpointError):
            push(server, request, {"deadline": 0.3}, insecure=True)
    assert len(server.calls) == 1


def test_untrusted_tls_certificate_is_refused(certificates: Certificates) -> None:
    with (
        grpc_receiver(credentials=tls(certificates, client=False)) as server,
        pytest.raises(RefusedError) as caught,
    ):
        push(server, traces(1), insecure=False)
    assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)
    assert "check OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL and _CERTIFICATE" in str(caught.value)


def test_tls_to_a_plaintext_receiver_is_an_endpoint_error() -> None:
    with grpc_receiver() as server, pytest.raises(EndpointError) as caught:
        push(server, traces(1), {"deadline": 1}, insecure=False)
    assert "_CERTIFICATE" in str(caught.value)


def test_a_certificate_that_is_missing(tmp_path: Any) -> None:
    with grpc_receiver() as server, pytest.raises(UsageError, match="_CERTIFICATE names"):
        push(server, traces(1), insecure=False, certificate=str(tmp_path / "missing"))
