"""Refusals of a running collector: every one in a counter, one of each kind in the log."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path

import grpc
import pytest

from cirron_otel.collector.receiver.http.connections import OPERATION_PLACES
from tests.kit.servers.http2_frames import (
    PREFACE,
    data_frame,
    frame,
    headers_frames,
    indexed,
    literal,
)
from tests.kit.servers.servers import traces
from tests.kit.servers.serving import Serving, serving

from .test_figures import samples

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
PROTOBUF = "application/x-protobuf"
RIGHT = "Bearer token-1"
TIMES = 3

HTTP: list[tuple[str, str, str, str, dict[str, str], int]] = [
    # reason, signal, method, path, headers, status
    ("unauthenticated", "traces", "POST", "/v1/traces", {"Authorization": "Bearer wrong"}, 401),
    ("unauthenticated", "-", "GET", "/metrics", {"Authorization": "Bearer wrong"}, 401),
    ("unauthenticated", "logs", "POST", "/v1/logs", {"Authorization": "Basic wrong"}, 401),
    ("path", "-", "POST", "/v1/nothing", {}, 404),
    ("unsupported", "metrics", "POST", "/v1/metrics", {}, 404),
    ("method", "traces", "DELETE", "/v1/traces", {}, 405),
    ("encoding", "traces", "POST", "/v1/traces", {"Content-Encoding": "br"}, 415),
    ("media_type", "traces", "POST", "/v1/traces", {"Content-Type": "text/plain"}, 415),
    ("headers", "traces", "POST", "/v1/traces", {"X-Scope-OrgID": ""}, 400),
    ("too_large", "traces", "POST", "/v1/traces", {"X-Large": "yes"}, 413),
    ("invalid", "traces", "POST", "/v1/traces", {"Content-Encoding": "gzip"}, 400),
    ("expectation", "traces", "POST", "/v1/traces", {"Expect": "much"}, 417),
]
GRPC: list[tuple[str, str, str, list[tuple[str, str]], str]] = [
    # reason, signal, method, metadata, code
    ("unauthenticated", "traces", TRACES, [("authorization", "Bearer wrong")], "UNAUTHENTICATED"),
    ("headers", "traces", TRACES, [("x-scope-orgid", " ")], "INVALID_ARGUMENT"),
    ("path", "-", TRACES.replace("Export", "Import"), [], "UNIMPLEMENTED"),
    ("too_large", "traces", TRACES, [("x-large", "yes")], "RESOURCE_EXHAUSTED"),
    ("invalid", "traces", TRACES, [("x-bad", "yes")], "INVALID_ARGUMENT"),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Serving:  # type: ignore[misc]
    folder = tmp_path_factory.mktemp("refusals")
    file = folder / "collector.yaml"
    file.write_text(
        "limits: {request_bytes: 1MiB, in_flight_bytes: 64MiB}\n"
        "receivers: {http: {max_connections: 8}, auth: {tokens: [token-1]}}\n"
    )
    with serving(folder / "data", "--config", str(file)) as running:
        yield running  # type: ignore[misc]


def ask(here: Serving, method: str, path: str, headers: dict[str, str]) -> int:
    address = here.http.removeprefix("http://")
    client = http.client.HTTPConnection(address, timeout=30)
    body = bytes((1 << 20) + 1) if "X-Large" in headers else traces(1)
    with contextlib.closing(client):
        client.request(
            method, path, body, {"Authorization": RIGHT, "Content-Type": PROTOBUF, **headers}
        )
        return client.getresponse().status


def call(here: Serving, method: str, metadata: list[tuple[str, str]]) -> str:
    names = dict(metadata)
    body = b"\x0a" * ((1 << 20) + 1) if "x-large" in names else traces(1)
    body = b"\xff" if "x-bad" in names else body
    if "authorization" not in names:
        metadata = [("authorization", RIGHT), *metadata]
    with grpc.insecure_channel(here.grpc) as channel:
        try:
            channel.unary_unary(method)(body, metadata=metadata, timeout=30)
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "OK"


def counted(here: Serving) -> dict[tuple[str, str, str], float]:
    """Refusals by (reason, signal, transport)."""
    name = "refused_requests_total"
    return {key[1:]: value for key, value in samples(here, RIGHT).items() if key[0] == name}  # type: ignore[misc]


def logged(here: Serving) -> list[tuple[str, str, str]]:
    lines = [json.loads(line) for line in here.log.read_text().split("\n")[:-1]]
    fields = [line["fields"] for line in lines if "a request was refused" in line["message"]]
    return [(each["reason"], each["signal"], each["transport"]) for each in fields]


@pytest.mark.parametrize(("reason", "signal", "method", "path", "headers", "status"), HTTP)
def test_over_http(
    here: Serving,
    reason: str,
    signal: str,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
) -> None:
    key = (reason, signal, "http")
    before = counted(here).get(key, 0)
    assert [ask(here, method, path, headers) for _ in range(TIMES)] == [status] * TIMES
    assert counted(here)[key] == before + TIMES
    assert logged(here).count(key) == 1


@pytest.mark.parametrize(("reason", "signal", "method", "metadata", "code"), GRPC)
def test_over_grpc(
    here: Serving,
    reason: str,
    signal: str,
    method: str,
    metadata: list[tuple[str, str]],
    code: str,
) -> None:
    key = (reason, signal, "grpc")
    before = counted(here).get(key, 0)
    assert [call(here, method, metadata) for _ in range(TIMES)] == [code] * TIMES
    assert counted(here)[key] == before + TIMES
    assert logged(here).count(key) == 1


def test_non_http_requests_are_counted_and_logged_once(here: Serving) -> None:
    host, _, port = here.http.removeprefix("http://").rpartition(":")
    before = counted(here).get(("malformed", "-", "http"), 0)
    for _ in range(TIMES):
        with socket.create_connection((host.strip("[]"), int(port)), 30) as connection:
            connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            assert b" 400 " in connection.recv(1000)
    assert counted(here)["malformed", "-", "http"] == before + TIMES
    assert logged(here).count(("malformed", "-", "http")) == 1


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "a TLS handshake"),
        (b"POST /v1/traces HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP/1.1 request"),
        (b"PRI * HTTP/2.0\r\n\r\nsm\r\n\r\n", "HTTP/2"),
        (b"anything", "something else"),
    ],
)
def test_another_protocol_on_the_grpc_port_is_counted_and_logged(
    sent: bytes, found: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "data") as here:
        host, _, port = here.grpc.rpartition(":")
        for _ in range(TIMES):
            with socket.create_connection((host.strip("[]"), int(port)), 30) as connection:
                connection.sendall(sent)
                with contextlib.suppress(ConnectionError):
                    assert connection.recv(1000) == b""  # so that an exporter tries again
        assert counted(here)["malformed", "-", "grpc"] == TIMES
        assert logged(here).count(("malformed", "-", "grpc")) == 1
        assert f"expected gRPC, found {found}" in here.log.read_text()


def test_grpc_on_the_http_port_is_named_in_the_log(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as here:
        host, _, port = here.http.removeprefix("http://").rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), 30) as connection:
            connection.sendall(PREFACE)
            assert b" 400 " in connection.recv(1000)
        assert "found HTTP/2: send gRPC to the address of receivers.grpc" in here.log.read_text()


@pytest.mark.parametrize("first", [2, 128, 255])
@pytest.mark.parametrize("is_last", [False, True])
def test_grpc_message_with_an_impossible_first_byte_is_refused(
    here: Serving, first: int, is_last: bool
) -> None:
    """INTERNAL, and the connection stays usable."""
    host, _, port = here.grpc.rpartition(":")
    before = counted(here).get(("malformed", "traces", "grpc"), 0)
    block = (
        indexed(3)
        + indexed(6)
        + b"".join(
            literal(name, value, 0)
            for name, value in (
                (":path", TRACES),
                (":authority", "x"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("authorization", RIGHT),
            )
        )
    )
    with socket.create_connection((host.strip("[]"), int(port)), 30) as connection:
        message = bytes([first]) + bytes(4)
        connection.sendall(
            PREFACE
            + frame(0x4, 0, 0, b"")
            + headers_frames(1, block)
            + data_frame(1, message, is_last=is_last)
        )
        answer = b""
        while b"grpc-status\x02" not in answer:
            answer += connection.recv(1000)
        assert b"grpc-status\x0213" in answer
        answer = b""
        connection.sendall(headers_frames(3, block) + data_frame(3, bytes(5), is_last=True))
        while b"grpc-status" not in answer and b"\x00\x00\x00\x00\x03" not in answer:
            answer += connection.recv(1000)
    assert counted(here)["malformed", "traces", "grpc"] == before + 1


def test_silent_connections_give_way_and_are_counted(here: Serving) -> None:
    host, _, port = here.http.removeprefix("http://").rpartition(":")
    before = counted(here).get(("connections", "-", "http"), 0)
    with contextlib.ExitStack() as stack:
        for _ in range(8 + OPERATION_PLACES + 20):
            stack.enter_context(socket.create_connection((host.strip("[]"), int(port)), 30))
        assert ask(here, "GET", "/health", {}) == 200
        assert ask(here, "POST", "/v1/traces", {}) == 200
        assert counted(here)["connections", "-", "http"] >= before + 20
    assert logged(here).count(("connections", "-", "http")) == 1
