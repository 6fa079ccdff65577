"""OTLP/HTTP where the connection is what matters: absent, late, encrypted."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from cirron_otel.core.delivery.errors import (
    PushResult,
    RefusedError,
    StoppedError,
    UnreachableError,
)
from cirron_otel.core.delivery.retry_policy import Backoff
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.pusher import Pusher
from cirron_otel.errors import EndpointError, UsageError
from tests.kit.backends.process import free_port
from tests.kit.servers.servers import (
    Answer,
    Certificates,
    RecordedStop,
    http_receiver,
    traces,
)

from .http_pushes import QUICK, push


def test_refused_connection_is_reported_as_unreachable() -> None:
    config = OtlpConfig(
        OtlpProtocol.HTTP_PROTOBUF, f"http://127.0.0.1:{free_port()}/v1/traces?key=k1"
    )
    with (
        Pusher(config, deadline=30, backoff=Backoff(first=60, longest=60)) as pusher,
        pytest.raises(UnreachableError) as caught,
    ):
        pusher.push(traces(1))
    assert "/v1/traces did not accept: no answer (Connection refused): given up after" in str(
        caught.value
    )
    assert "key=k1" not in str(caught.value)
    assert caught.value.result == PushResult()


def test_no_such_host() -> None:
    config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, "http://no-such-host.invalid/v1/traces")
    with (
        Pusher(config, deadline=0.1, backoff=QUICK) as pusher,
        pytest.raises(UnreachableError, match="no answer"),
    ):
        pusher.push(traces(1))


def test_a_server_that_does_not_answer_in_time_is_asked_again() -> None:
    hold = threading.Event()
    stop = RecordedStop()
    with http_receiver(Answer(hold=hold), Answer(hold=hold)) as server:
        try:
            result = push(server, traces(3), {"stop": stop}, timeout=0.5)
            assert result == PushResult(3, requests=1)
        finally:
            hold.set()
    # On a busy machine, others than the first two may be too late.
    assert 3 <= len(server.posts) <= len(stop.waits) + 1


def test_an_attempt_ends_with_the_deadline() -> None:
    hold = threading.Event()
    with http_receiver(*[Answer(hold=hold)] * 9) as server:
        try:
            with pytest.raises(UnreachableError, match=r"no answer \(timed out\)"):
                push(server, traces(1), {"deadline": 0.3}, timeout=3600.0)
        finally:
            hold.set()


def test_non_http_answer_is_retried_like_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"220 smtp.example ready\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        port = listener.getsockname()[1]
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, f"http://127.0.0.1:{port}/v1/traces")
        stop = RecordedStop(2)
        with Pusher(config, stop=stop) as pusher, pytest.raises(StoppedError):
            pusher.push(traces(1))
        thread.join()
    assert len(stop.waits) == 2  # each babble was a failure to be tried again


@pytest.mark.parametrize("headers", [{"x": "a\nb"}, {"x": "\u20ac"}, {"x\n": "s3cret"}])
def test_headers_that_http_cannot_carry(headers: dict[str, str]) -> None:
    with http_receiver() as server, pytest.raises(UsageError) as caught:
        push(server, traces(1), headers=headers)
    assert "_HEADERS" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert server.posts == []


def tls_server(certificates: Certificates, *, client: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.path("ca.pem"))
    return context


def test_tls_with_a_client_certificate(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificates.path("client.pem"))  # not ours to obey
    request = traces(10)
    files = {
        "certificate": certificates.path("ca.pem"),
        "client_certificate": certificates.path("client.pem"),
        "client_key": certificates.path("client.key"),
    }
    with http_receiver(tls=tls_server(certificates, client=True)) as server:
        https = {"endpoint": server.url.replace("http:", "https:")}
        assert push(server, request, **files, **https).accepted_spans == 10
        assert [post.body for post in server.posts] == [request]
        with pytest.raises(EndpointError):
            push(server, request, {"deadline": 0.2}, certificate=files["certificate"], **https)
        both = certificates.folder / "both.pem"
        both.write_bytes(certificates.read("client.pem") + certificates.read("client.key"))
        one = {"certificate": files["certificate"], "client_certificate": str(both)}
        assert push(server, request, **one, **https).accepted_spans == 10


def test_untrusted_server_certificate_is_refused(certificates: Certificates) -> None:
    with (
        http_receiver(tls=tls_server(certificates, client=False)) as server,
        pytest.raises(RefusedError) as caught,
    ):
        push(server, traces(1), endpoint=server.url.replace("http:", "https:"))
    assert "no TLS connection" in str(caught.value)
    assert "certificate verify failed" in str(caught.value).lower()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT and _CERTIFICATE" in str(caught.value)
    assert server.posts == []


def test_tls_to_a_plaintext_server_is_refused() -> None:
    with http_receiver() as server, pytest.raises(RefusedError, match="no TLS connection"):
        push(server, traces(1), endpoint=server.url.replace("http:", "https:"))


def test_certificates_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    with http_receiver(tls=tls_server(certificates, client=True)) as server:
        https = {"endpoint": server.url.replace("http:", "https:")}
        for name in ("certificate", "client_certificate", "client_key"):
            with pytest.raises(UsageError) as caught:
                push(server, traces(1), **{name: str(tmp_path / "missing")}, **https)
            assert f"OTEL_EXPORTER_OTLP_{name.upper()} names" in str(caught.value)
            assert "No such file" in str(caught.value)
        garbage = tmp_path / "garbage"
        garbage.write_text("no certificate")
        for name in ("certificate", "client_certificate"):
            with pytest.raises((UsageError, RefusedError)) as other:
                push(server, traces(1), **{name: str(garbage)}, **https)
            assert "\n" not in str(other.value)
            assert "_CERTIFICATE" in str(other.value)
