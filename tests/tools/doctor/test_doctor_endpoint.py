"""`doctor` and OTLP endpoints: real servers on loopback, each with another fault."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from cirron_otel.tools.doctor.check import Check
from cirron_otel.tools.doctor.otlp import OtlpRequest, examine_otlp
from tests.kit.backends.process import free_port
from tests.kit.backends.run import Otelcol, spans_of
from tests.kit.servers.server import OtlpServer
from tests.kit.servers.servers import (
    Answer,
    Post,
    fails,
    grpc_receiver,
    http_receiver,
)
from tests.kit.servers.serving import serving

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
HTTP = {PROTOCOL: "http/protobuf"}
SECRET = "abc123def456"


def checked(
    environ: dict[str, str], *, timeout: float = 20.0, is_sent: bool = True
) -> dict[str, Check]:
    """Return the findings by name; check that none contains a secret of these tests."""
    request = OtlpRequest(environ, timeout, is_sent, "a service")
    found = {check.name: check for check in examine_otlp(request)}
    assert SECRET not in json.dumps([check.to_json() for check in found.values()])
    return found


def last(found: dict[str, Check]) -> Check:
    return list(found.values())[-1]


def states(found: dict[str, Check]) -> dict[str, str]:
    return {name: str(check.state) for name, check in found.items()}


@contextlib.contextmanager
def listening(say: bytes | None = None) -> Iterator[int]:
    """Listen on a port; send nothing, or send `say` after the first data and close."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    held.append(sock)
                    if say is not None:
                        sock.recv(65536)
                        sock.sendall(say)
                        sock.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for sock in held:
            sock.close()


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """Listen on a port that neither accepts nor refuses connections: its queue is full."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(server.getsockname())
        yield server.getsockname()[1]


class _Web(BaseHTTPRequestHandler):
    """A web server that is no OTLP receiver, and whose clock is years slow."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002
        return "Wed, 21 Oct 2015 07:28:00 GMT"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def late() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Web)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def spans_in(body: bytes) -> list[str]:
    return [
        span.name
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


class TestWorkingEndpoint:
    def test_grpc(self) -> None:
        with grpc_receiver() as receiver:
            found = checked({ENDPOINT: f"http://localhost:{receiver.port}"})
        assert set(states(found).values()) == {"ok"}
        assert list(found) == [
            "otlp settings",
            "otlp dns",
            "otlp tcp",
            "otlp protocol",
            "otlp span",
        ]
        (call,) = receiver.calls
        assert spans_in(call.body) == ["cirron-otel doctor"]
        trace = ExportTraceServiceRequest.FromString(call.body).resource_spans[0]
        assert trace.scope_spans[0].spans[0].trace_id.hex() in last(found).found
        assert trace.resource.attributes[0].value.string_value == "a service"

    @pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
    def test_http(self, protocol: str) -> None:
        with http_receiver() as receiver:
            found = checked({
                PROTOCOL: protocol,
                ENDPOINT: f"http://127.0.0.1:{receiver.port}",
                HEADERS: f"authorization=Bearer%20{SECRET},X-Scope-OrgID=a",
            })  # fmt: skip
        assert set(states(found).values()) == {"ok"}
        assert "authorization, x-scope-orgid (values not shown)" in found["otlp headers"].found
        (post,) = receiver.posts
        assert post.headers["authorization"] == f"Bearer {SECRET}"
        assert last(found).details["status"] == "200 OK"

    def test_without_sending_no_span_goes(self) -> None:
        with grpc_receiver() as receiver, http_receiver() as http:
            found = [
                checked({ENDPOINT: f"http://127.0.0.1:{receiver.port}"}, is_sent=False),
                checked({**HTTP, ENDPOINT: f"http://127.0.0.1:{http.port}"}, is_sent=False),
            ]
        assert [last(each).name for each in found] == ["otlp request"] * 2
        assert [last(each).state for each in found] == ["ok"] * 2
        assert [call.body for call in receiver.calls] == [post.body for post in http.posts] == [b""]

    def test_cirron_collector_is_recognized(self, tmp_path: Path) -> None:
        with serving(tmp_path / "traces") as collector:
            found = checked({**HTTP, ENDPOINT: collector.http})
            assert collector.end() == 0
        assert found["otlp protocol"].details["is_our_collector"]
        assert last(found).state == "ok"

    def test_a_real_collector(self, otelcol_file: Otelcol) -> None:
        found = [
            checked({ENDPOINT: f"http://{otelcol_file.otlp_grpc}"}),
            checked({**HTTP, ENDPOINT: otelcol_file.otlp_http}),
        ]
        sent = {last(each).details["trace_id"] for each in found}
        spans = spans_of(otelcol_file.wait_for_spans(2))
        assert {span["traceId"] for span in spans} == sent
        crossed = [
            checked({ENDPOINT: otelcol_file.otlp_http}),
            checked({**HTTP, ENDPOINT: f"http://{otelcol_file.otlp_grpc}"}),
        ]
        assert "answers HTTP/1.1, not gRPC" in last(crossed[0]).found
        assert "answers HTTP/2, as gRPC does" in last(crossed[1]).found
        doubled = checked({**HTTP, ENDPOINT: f"{otelcol_file.otlp_http}/v1/traces"})
        assert "is doubled" in doubled["otlp settings"].found
        assert last(doubled).advice.endswith(f"set {ENDPOINT}={otelcol_file.otlp_http}")


class TestTheWay:
    def test_refused_connection_is_reported(self) -> None:
        port = free_port()
        check = last(checked({ENDPOINT: f"http://127.0.0.1:{port}"}))
        assert (check.name, check.is_endpoint) == ("otlp tcp", True)
        assert "refuses connections" in check.found
        assert ENDPOINT in check.advice

    def test_a_black_hole_ends_in_time(self) -> None:
        with black_hole() as port:
            check = last(checked({ENDPOINT: f"http://127.0.0.1:{port}"}, timeout=0.5))
        assert check.name == "otlp tcp"
        assert "does not answer within 0.5 s" in check.found

    @pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
    def test_silent_server_is_reported(self, protocol: str) -> None:
        with listening() as port:
            environ = {PROTOCOL: protocol, ENDPOINT: f"http://127.0.0.1:{port}"}
            check = last(checked(environ, timeout=1.5))
        assert (check.name, check.is_endpoint) == ("otlp protocol", True)
        assert "accepts the connection, but sends nothing" in check.found

    @pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
    def test_one_that_speaks_something_else(self, protocol: str) -> None:
        with listening(b"220 mail.example ESMTP\r\n") as port:
            check = last(checked({PROTOCOL: protocol, ENDPOINT: f"http://127.0.0.1:{port}"}))
        assert "answers with something other than " in check.found

    @pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
    def test_one_that_hangs_up(self, protocol: str) -> None:
        with listening(b"") as port:
            check = last(checked({PROTOCOL: protocol, ENDPOINT: f"http://127.0.0.1:{port}"}))
        assert "closes the connection without an answer" in check.found

    def test_a_password_in_the_endpoint(self) -> None:
        with http_receiver(Answer(401)) as receiver:
            place = f"127.0.0.1:{receiver.port}"
            found = checked({**HTTP, ENDPOINT: f"http://user:{SECRET}@{place}"})
        assert f"http/protobuf to http://{place}/v1/traces" in found["otlp settings"].found
        assert "not accepted: 401" in last(found).found

    def test_a_name_that_is_not_known(self) -> None:
        check = last(checked({ENDPOINT: "http://no-such-host.invalid:4317"}))
        assert check.name == "otlp dns"
        assert "no-such-host.invalid has no address" in check.found

    def test_this_machine_through_a_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        port = free_port()
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        with http_receiver() as receiver:
            found = checked({**HTTP, ENDPOINT: f"http://127.0.0.1:{receiver.port}"})
        assert found["otlp proxy"].advice == "set no_proxy=127.0.0.1"
        assert last(found).state == "failed"
        assert receiver.posts == []


class TestTheProtocol:
    def test_grpc_asked_for_and_http_spoken(self) -> None:
        with http_receiver() as receiver:
            check = last(checked({ENDPOINT: f"http://127.0.0.1:{receiver.port}"}))
        assert "answers HTTP/1.1, not gRPC" in check.found
        assert f"set {PROTOCOL}=http/protobuf" in check.advice

    def test_http_asked_for_and_grpc_spoken(self) -> None:
        with grpc_receiver() as receiver:
            check = last(checked({**HTTP, ENDPOINT: f"http://127.0.0.1:{receiver.port}"}))
        assert "answers HTTP/2, as gRPC does" in check.found
        assert f"set {PROTOCOL}=grpc" in check.advice

    def test_the_variable_that_counts_is_named(self) -> None:
        with http_receiver() as receiver:
            check = last(checked({
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
            }))  # fmt: skip
        assert "set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in check.advice

    def test_a_clock_that_is_wrong(self, late: int) -> None:
        found = checked({**HTTP, ENDPOINT: f"http://127.0.0.1:{late}"})
        assert found["otlp clock"].state == "warning"
        assert "s behind ours" in found["otlp clock"].found
        assert last(found).state == "ok"


class TestTheSettings:
    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({PROTOCOL: "carrier/pigeon"}, f"{PROTOCOL} is 'carrier/pigeon': expected grpc, "),
            ({**HTTP, ENDPOINT: "localhost:4318"}, "is not an http:// or https:// URL"),
            ({ENDPOINT: "http://:4317"}, "has no host"),
            ({ENDPOINT: "http://"}, "has no host"),
            ({ENDPOINT: "http://localhost:0"}, "has no port"),
            ({ENDPOINT: "http://localhost:65536"}, "has no host and port"),
        ],
    )
    def test_unusable_settings_are_reported(self, settings: dict[str, str], said: str) -> None:
        found = checked(settings)
        assert list(found) == ["otlp settings"]
        assert said in last(found).found
        assert not last(found).is_endpoint

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({ENDPOINT: "http://localhost:1/v1/traces"}, "gRPC does not use its path /v1/traces"),
            ({ENDPOINT: "http://localhost"}, "without a port, gRPC uses 443"),
            ({**HTTP, ENDPOINT: "http://localhost:1/v1/traces"}, "/v1/traces is doubled"),
            (
                {**HTTP, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:1"},
                "its path is /, and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used unchanged",
            ),
            (
                {**HTTP, ENDPOINT: "http://localhost:1", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
                "OTEL_EXPORTER_OTLP_TIMEOUT is 'soon'",
            ),
        ],
    )
    def test_suspicious_settings_are_warned_about(
        self, settings: dict[str, str], said: str
    ) -> None:
        check = checked(settings, timeout=0.5)["otlp settings"]
        assert check.state == "warning"
        assert said in check.found

    def test_a_target_of_grpcs_has_no_path(self) -> None:
        found = checked({ENDPOINT: "dns:///127.0.0.1:1"})
        assert found["otlp settings"].state == "ok"
        assert last(found).name == "otlp tcp"

    @pytest.mark.parametrize(
        ("headers", "state", "said"),
        [
            (f"Authorization: Bearer {SECRET}", "failed", "not name: value"),
            (f"authorization=Bearer {SECRET};x=1,,=", "failed", "ignored"),
            (f"authorization={SECRET}", "warning", "does not begin with Basic, Bearer or another"),
            (f"authorization=Bearer%2520{SECRET}", "warning", "encoded twice"),
            ("x-api-key=", "warning", "x-api-key is empty"),
            # Base64 ends with =, so it would look like a name.
            (f"{SECRET}=", "failed", "1 of its values without a name"),
            (f"{SECRET}==", "failed", "1 of its values without a name"),
            (f"tenant=a,{SECRET}=", "failed", "has tenant; 1 of its values without a name"),
            (f"x-api-key={SECRET}", "ok", "x-api-key (values not shown)"),
        ],
    )
    def test_headers(self, headers: str, state: str, said: str) -> None:
        port = free_port()
        environ = {**HTTP, ENDPOINT: f"http://127.0.0.1:{port}", HEADERS: headers}
        check = checked(environ)["otlp headers"]
        assert check.state == state
        assert said in check.found + check.advice

    def test_credentials_without_tls(self) -> None:
        environ = {ENDPOINT: "http://no-such-host.invalid:1", HEADERS: f"x-api-key={SECRET}"}
        check = checked(environ)["otlp headers"]
        assert (check.state, check.advice) == ("warning", "use https:// in the endpoint")


class TestTheAnswer:
    @pytest.mark.parametrize(
        ("status", "headers", "advice"),
        [
            (401, "", f"it requires credentials: set {HEADERS}"),
            (401, f"authorization=Bearer%20{SECRET}", "it does not accept the credentials in "),
            (403, f"x-api-key={SECRET}", "it does not allow the sender to write"),
            (405, "", "check the path in"),
            (415, "", f"check {PROTOCOL}"),
            (429, "", "its rate limit is exceeded"),
            (503, "", "it cannot accept data now"),
            (308, "", "check the path in"),
        ],
    )
    def test_http(self, status: int, headers: str, advice: str) -> None:
        quoted = f"no {SECRET}".encode() if headers else b""
        with http_receiver(*[Answer(status, quoted)] * 5) as receiver:
            environ = {**HTTP, ENDPOINT: f"http://127.0.0.1:{receiver.port}", HEADERS: headers}
            found = checked(environ)
        assert (last(found).name, last(found).is_endpoint) == ("otlp span", True)
        assert f"not accepted: {status}" in last(found).found
        assert advice in last(found).advice

    @pytest.mark.parametrize(
        ("code", "advice"),
        [
            (grpc.StatusCode.UNAUTHENTICATED, "it requires credentials"),
            (grpc.StatusCode.PERMISSION_DENIED, "it does not allow the sender to write"),
            (grpc.StatusCode.UNIMPLEMENTED, f"set {PROTOCOL}=http/protobuf"),
            (grpc.StatusCode.UNAVAILABLE, "it cannot accept data now"),
        ],
    )
    def test_grpc(self, code: grpc.StatusCode, advice: str) -> None:
        with grpc_receiver(fails(code, "no such luck")) as receiver:
            check = last(checked({ENDPOINT: f"http://127.0.0.1:{receiver.port}"}))
        assert f"not accepted: {code.name}: no such luck" in check.found
        assert advice in check.advice

    def test_a_span_that_is_rejected(self, server: OtlpServer) -> None:
        server.rejected = 1
        check = last(checked(server.environ))
        assert (check.state, check.is_endpoint) == ("failed", True)
        assert "the span was rejected: too many spans" in check.found

    def test_a_warning_of_an_endpoint_that_took_it(self) -> None:
        response = ExportTraceServiceResponse()
        response.partial_success.error_message = "soon no more"
        answer = response.SerializeToString()
        with grpc_receiver(lambda *_: answer) as receiver:
            check = last(checked({ENDPOINT: f"http://127.0.0.1:{receiver.port}"}))
        assert check.state == "ok"
        assert "soon no more" in check.found

    def test_a_web_page(self) -> None:
        page = Answer(200, b"<html>", {"Content-Type": "text/html"})
        with http_receiver(*[page] * 5) as receiver:
            check = last(checked({**HTTP, ENDPOINT: f"http://127.0.0.1:{receiver.port}"}))
        assert "this is not an OTLP endpoint" in check.found

    def test_path_accepted_by_the_server_is_suggested(self) -> None:
        def only_there(post: Post) -> Answer:
            return Answer(200 if post.path == "/otlp/v1/traces" else 404)

        with http_receiver(*[only_there] * 9) as receiver:
            place = f"http://127.0.0.1:{receiver.port}"
            check = last(checked({**HTTP, ENDPOINT: place}))
        assert check.advice == f"traces are accepted at {place}/otlp/v1/traces: set {ENDPOINT}=" + (
            f"{place}/otlp"
        )
