"""The rules of OTLP/HTTP and docs/cirron-http.md, one a row, over a real socket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from cirron_otel.collector.receiver.auth import Tokens
from cirron_otel.collector.receiver.consumer import (
    BodyEncoding,
    ConsumeResult,
    Reason,
    ReceivedSignal,
    RefusalError,
)
from cirron_otel.collector.receiver.http.server import OperationEndpoints

from .fake_intake import FakeIntake
from .http_serving import (
    BATCH,
    JSON,
    PROTOBUF,
    Blobs,
    Served,
    said,
    serving,
    traces,
)

OTLP = b'{"resourceSpans": []}'
CIRRON = json.dumps(BATCH).encode()
TAKEN = FakeIntake().max_body_bytes
SPAN = "d2ce78ef00209c97e9740147daea358d"


@pytest.fixture(scope="module")
def everything() -> Iterator[Served]:
    health = OperationEndpoints(metrics=lambda: (b"up 1\n", "text/plain; version=0.0.4"))
    with serving(blobs=Blobs(), health=health) as served:
        yield served


@pytest.fixture
def server(everything: Served) -> Served:
    intake = everything.intake
    intake.requests.clear()
    intake.refusal, intake.answer, intake.hold = None, ConsumeResult(), None
    return everything


# what is sent: path, Content-Type, body; what the intake gets, and what is answered
KEPT = [
    ("/v1/traces", PROTOBUF, traces(), ReceivedSignal.TRACES, BodyEncoding.PROTOBUF, 200),
    ("/v1/traces", PROTOBUF, b"", ReceivedSignal.TRACES, BodyEncoding.PROTOBUF, 200),
    (
        "/v1/traces",
        "Application/X-Protobuf ; a=b",
        traces(),
        ReceivedSignal.TRACES,
        BodyEncoding.PROTOBUF,
        200,
    ),
    # Whether bytes are protobuf is not looked at here: what is behind does.
    ("/v1/traces", PROTOBUF, CIRRON, ReceivedSignal.TRACES, BodyEncoding.PROTOBUF, 200),
    ("/v1/traces?x=1", PROTOBUF, traces(), ReceivedSignal.TRACES, BodyEncoding.PROTOBUF, 200),
    ("/v1/metrics", PROTOBUF, b"\x0a\x00", ReceivedSignal.METRICS, BodyEncoding.PROTOBUF, 200),
    ("/v1/logs", PROTOBUF, b"\x0a\x00", ReceivedSignal.LOGS, BodyEncoding.PROTOBUF, 200),
    ("/v1/traces", JSON, OTLP, ReceivedSignal.TRACES, BodyEncoding.JSON, 200),
    ("/v1/traces", JSON, b"{}", ReceivedSignal.TRACES, BodyEncoding.JSON, 200),
    ("/v1/traces", f"{JSON}; charset=UTF-8", OTLP, ReceivedSignal.TRACES, BodyEncoding.JSON, 200),
    (
        "/v1/metrics",
        JSON,
        b'{"resourceMetrics": []}',
        ReceivedSignal.METRICS,
        BodyEncoding.JSON,
        200,
    ),
    ("/v1/logs", JSON, b'{"resourceLogs": []}', ReceivedSignal.LOGS, BodyEncoding.JSON, 200),
    ("/v1/traces", JSON, CIRRON, ReceivedSignal.CIRRON, BodyEncoding.JSON, 202),
    ("/api/traces", JSON, CIRRON, ReceivedSignal.CIRRON, BodyEncoding.JSON, 202),
]


@pytest.mark.parametrize(("path", "kind", "body", "signal", "encoding", "status"), KEPT)
def test_valid_request_is_accepted(
    server: Served, path: str, kind: str, body: bytes, signal: Any, encoding: Any, status: int
) -> None:
    answer = server.post(body, path, kind)

    assert answer.status == status
    (request,) = server.intake.requests
    assert (request.signal, request.encoding, request.body) == (signal, encoding, body)
    assert request.received_ns > 1_700_000_000 * 10**9
    assert "server" not in answer.headers
    if signal is ReceivedSignal.CIRRON:
        assert json.loads(answer.body) == {"batch_id": BATCH["batch_id"]}
    else:
        assert answer.body == (b"" if encoding is BodyEncoding.PROTOBUF else b"{}")
    expected = PROTOBUF if encoding is BodyEncoding.PROTOBUF else JSON
    assert answer.headers["content-type"] == expected


# method, path, Content-Type, body, further headers, status, what the message has
REFUSED: list[tuple[str, str, str, bytes, dict[str, str], int, str]] = [
    ("POST", "/", PROTOBUF, b"", {}, 404, "no requests are accepted"),
    ("POST", "/v1/trace", JSON, OTLP, {}, 404, "no requests are accepted"),
    ("POST", "/v1/traces/", PROTOBUF, b"", {}, 404, "no requests are accepted"),
    ("POST", "/v1/../v1/traces", PROTOBUF, b"", {}, 404, "no requests are accepted"),
    ("POST", "/v1/traces%00", PROTOBUF, b"", {}, 404, "no requests are accepted"),
    ("POST", "/V1/TRACES", PROTOBUF, b"", {}, 404, "no requests are accepted"),
    ("GET", "/v1/traces", PROTOBUF, b"", {}, 405, "expected POST"),
    ("PUT", "/v1/logs", PROTOBUF, b"x", {}, 405, "expected POST"),
    ("OPTIONS", "/v1/traces", "", b"", {}, 405, "expected POST"),
    ("DELETE", "/v1/metrics", JSON, b"{}", {}, 405, "expected POST"),
    ("POST", "/metrics", JSON, b"{}", {}, 405, "expected GET"),
    ("POST", f"/v1/traces/blobs/snapshots/{SPAN}/f", JSON, b"{}", {}, 405, "expected PUT"),
    ("POST", "/v1/traces", "", OTLP, {}, 415, "found none"),
    ("POST", "/v1/traces", "text/plain", OTLP, {}, 415, "'text/plain'"),
    ("POST", "/v1/traces", "application/x-www-form-urlencoded", OTLP, {}, 415, "x-www-form"),
    ("POST", "/v1/traces", "application/protobuf", b"", {}, 415, "x-protobuf"),
    ("POST", "/v1/traces", "application/json; charset=utf-16", OTLP, {}, 415, "UTF-8"),
    ("POST", "/api/traces", PROTOBUF, traces(), {}, 415, "application/json"),
    ("POST", "/v1/traces", PROTOBUF, b"x", {"Content-Encoding": "br"}, 415, "gzip"),
    ("POST", "/v1/traces", JSON, b"x", {"Content-Encoding": "gzip, gzip"}, 415, "several"),
    ("POST", "/v1/traces", JSON, b"", {}, 400, "JSON object"),
    ("POST", "/v1/traces", JSON, b"[]", {}, 400, "JSON object"),
    ("POST", "/v1/traces", JSON, b"<b>", {}, 400, "JSON object"),
    ("POST", "/v1/traces", JSON, b"x", {"Content-Encoding": "gzip"}, 400, "gzip"),
    ("POST", "/v1/traces", PROTOBUF, b"x", {"Content-Encoding": "zstd"}, 400, "zstd"),
    ("POST", "/v1/traces", PROTOBUF, b"x" * (TAKEN + 1), {}, 413, f"{TAKEN} bytes"),
    ("POST", "/v1/traces", JSON, b"x" * (TAKEN + 1), {}, 413, f"{TAKEN} bytes"),
    ("POST", "/v1/traces", JSON, b"{}", {"Expect": "a coffee"}, 417, "100-continue"),
    ("PUT", f"/v1/traces/blobs/tensors/{SPAN}/f", "", b"x", {}, 404, "snapshots"),
    ("PUT", f"/v1/traces/blobs/snapshots/{SPAN}", "", b"x", {}, 404, "snapshots"),
    ("PUT", f"/v1/traces/blobs/snapshots/{SPAN}/a/b", "", b"x", {}, 404, "snapshots"),
    ("PUT", "/api/traces/blobs/snapshots/../f", "", b"x", {}, 400, "is not a name"),
    ("PUT", f"/api/traces/blobs/snapshots/{SPAN}/.f", "", b"x", {}, 400, "is not a name"),
    ("PUT", f"/api/traces/blobs/snapshots/{SPAN}/%2e%2e", "", b"x", {}, 400, "is not a name"),
    ("PUT", f"/api/traces/blobs/snapshots/{SPAN}/a%2Fb", "", b"x", {}, 400, "is not a name"),
    ("PUT", f"/api/traces/blobs/snapshots/{SPAN}/a%00", "", b"x", {}, 400, "is not a name"),
    ("PUT", f"/api/traces/blobs/snapshots/{SPAN}/{'a' * 300}", "", b"x", {}, 400, "is not a name"),
    ("PUT", f"/api/traces/blobs/snapshots//{SPAN}", "", b"x", {}, 400, "is not a name"),
]


@pytest.mark.parametrize(("method", "path", "kind", "body", "headers", "status", "word"), REFUSED)
def test_invalid_request_is_refused(
    server: Served,
    method: str,
    path: str,
    kind: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    word: str,
) -> None:
    answer = server.ask(method, path, body, {**({"Content-Type": kind} if kind else {}), **headers})

    assert answer.status == status
    assert word in answer.message
    assert answer.headers["content-type"] == (PROTOBUF if kind == PROTOBUF else JSON)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers
    assert "retry-after" not in answer.headers
    assert b"<" not in answer.body
    assert not server.intake.requests


REFUSAL = "no: <script>é\u2028\ud800</script>"
BAD_REQUEST = [
    {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [{"description": REFUSAL}],
    }
]
REASONS = [
    (Reason.INVALID, None, 400, 3, None),
    (Reason.TOO_LARGE, None, 413, 8, None),
    (Reason.BUSY, None, 429, 14, "1"),
    (Reason.BUSY, 7.2, 429, 14, "8"),
    (Reason.UNAVAILABLE, 0.0, 503, 14, "1"),
    (Reason.UNAVAILABLE, 30, 503, 14, "30"),
    (Reason.UNSUPPORTED, None, 404, 12, None),
]


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
@pytest.mark.parametrize(("reason", "after", "status", "code", "header"), REASONS)
def test_refusals_of_the_intake(
    server: Served, kind: str, reason: Any, after: Any, status: int, code: int, header: Any
) -> None:
    text = REFUSAL
    server.intake.refusal = RefusalError(reason, text, after)

    answer = server.post(traces() if kind == PROTOBUF else OTLP, kind=kind)

    assert answer.status == status
    assert answer.headers.get("retry-after") == header
    assert answer.headers["content-type"] == kind
    if kind == PROTOBUF:
        found = Status.FromString(answer.body)
        assert (found.code, found.message) == (code, text.replace("\ud800", "?"))
        assert len(found.details) == (status == 400)
    else:
        told = json.loads(answer.body)
        assert told.pop("details", None) == (BAD_REQUEST if status == 400 else None)
        assert told == {"code": code, "message": text}
        assert b"<" not in answer.body
        assert answer.body.isascii()


def test_a_fault_of_the_intake_loses_nothing(server: Served) -> None:
    server.intake.refusal = ZeroDivisionError("secret")

    answer = server.post(traces())

    assert answer.status == 503, "500 is final to OTLP clients"
    assert answer.headers["retry-after"] == "5"
    assert b"secret" not in answer.body


SIGNALS: list[tuple[str, Any, str, str]] = [
    ("/v1/traces", ExportTraceServiceResponse, "rejected_spans", "rejectedSpans"),
    ("/v1/metrics", ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints"),
    ("/v1/logs", ExportLogsServiceResponse, "rejected_log_records", "rejectedLogRecords"),
]


@pytest.mark.parametrize(("path", "message", "name", "json_name"), SIGNALS)
@pytest.mark.parametrize(
    ("rejected", "why"), [(0, ""), (300, "too old"), (0, "a warning"), (1, "")]
)
def test_partial_success(
    server: Served, path: str, message: Any, name: str, json_name: str, rejected: int, why: str
) -> None:
    server.intake.answer = ConsumeResult(rejected=rejected, message=why)

    found = message.FromString(server.post(b"", path).body)
    told = json.loads(server.post(b"{}", path, JSON).body)

    assert found.HasField("partial_success") == bool(rejected or why)
    assert getattr(found.partial_success, name) == rejected
    assert found.partial_success.error_message == why
    if rejected or why:
        assert int(told["partialSuccess"].get(json_name, "0")) == rejected
        assert told["partialSuccess"].get("errorMessage", "") == why
    else:
        assert told == {}


def test_identity_headers_are_passed_on_and_credentials_are_not(server: Served) -> None:
    server.post(
        CIRRON,
        kind=JSON,
        Authorization="Bearer secret",
        Cookie="secret",
        X_Scope_OrgID="tenant",
        X_Cirron_Run_Id="run",
        X_Cirron_SDK_Version="0.3.0",
        X_Cirron_Api_Key="secret",
        X_Other="secret",
    )
    assert server.intake.requests[0].headers == {
        "x-scope-orgid": "tenant",
        "x-cirron-run-id": "run",
        "x-cirron-sdk-version": "0.3.0",
    }


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Scope-OrgID", "a"), ("x-scope-orgid", "b")],
        [("X-Scope-OrgID", "é".encode())],
        [("X-Scope-OrgID", b"\xff\xfe")],
        [("X-Cirron-Run-Id", "a" * 1025)],
    ],
)
def test_ambiguous_or_invalid_identity_headers_are_refused(
    server: Served, headers: list[tuple[str, Any]]
) -> None:
    with contextlib.closing(server.client()) as client:
        client.putrequest("POST", "/v1/traces")
        for name, value in [("Content-Type", PROTOBUF), ("Content-Length", "0"), *headers]:
            client.putheader(name, value)
        client.endheaders()
        assert said(client).status == 400
    assert not server.intake.requests


def test_the_headers_that_are_passed_can_be_chosen() -> None:
    with serving(passed_headers=("X-Team", "Authorization")) as server:
        server.post(b"", X_Team="a", Authorization="Bearer secret", X_Scope_OrgID="b")
        assert server.intake.requests[0].headers == {"x-team": "a"}


TOKENS = ("one-token", "another")
LET_IN = [
    ("Bearer one-token", True),
    ("bearer another", True),
    ("Bearer  another ", True),
    ("Bearer one-toke", False),
    ("Bearer one-token2", False),
    ("Bearer one-token another", False),
    ("Bearer", False),
    ("Bearer ", False),
    ("one-token", False),
    ("Basic one-token", False),
    ("", False),
    (None, False),
]


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    health = OperationEndpoints(metrics=lambda: (b"up 1\n", "text/plain"))
    with serving(auth=Tokens(TOKENS), blobs=Blobs(), health=health) as served:
        yield served


@pytest.mark.parametrize(("header", "is_let_in"), LET_IN)
@pytest.mark.parametrize(
    ("method", "path", "kind", "body"),
    [
        ("POST", "/v1/traces", PROTOBUF, traces()),
        ("POST", "/v1/traces", JSON, CIRRON),
        ("POST", "/v1/logs", JSON, b"{}"),
        ("PUT", f"/v1/traces/blobs/snapshots/{SPAN}/f", "", b"x"),
        ("HEAD", f"/api/traces/blobs/snapshots/{SPAN}/f", "", None),
        ("GET", "/metrics", "", None),
    ],
)
def test_bearer_tokens(
    locked: Served, header: Any, is_let_in: bool, method: str, path: str, kind: str, body: Any
) -> None:
    locked.intake.requests.clear()
    headers = {"Content-Type": kind} | ({} if header is None else {"Authorization": header})

    answer = locked.ask(method, path, body, headers)

    assert (answer.status == 401) is not is_let_in
    if not is_let_in:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert not locked.intake.requests


def test_two_authorization_headers_are_refused(locked: Served) -> None:
    answer = locked.raw(
        b"POST /v1/logs HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n"
        b"Authorization: Bearer another\r\nAuthorization: Bearer wrong\r\n\r\n"
    )
    assert answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 400"))


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_token(locked: Served, path: str) -> None:
    assert locked.ask("GET", path).status == 200


def test_operation() -> None:
    state = {"live": "", "ready": "the journal is full"}
    health = OperationEndpoints(
        lambda: state["live"], lambda: state["ready"], lambda: (b"up 1\n", "text/plain; x=y")
    )
    with serving(health=health) as server:
        assert json.loads(server.ask("GET", "/health").body) == {"status": "ok"}
        not_ready = server.ask("GET", "/ready")
        assert (not_ready.status, not_ready.message) == (503, "the journal is full")
        state.update(live="dead", ready="")
        assert server.ask("GET", "/ready").status == 200
        assert server.ask("GET", "/health").status == 503
        metrics = server.ask("GET", "/metrics")
        assert (metrics.body, metrics.headers["content-type"]) == (b"up 1\n", "text/plain; x=y")
        assert server.ask("HEAD", "/metrics").body == b""
        assert server.receiver.answered["/ready", 503] == 1
        assert server.receiver.answered["/health", 503] == 1
        assert server.ask("PUT", f"/v1/traces/blobs/snapshots/{SPAN}/f", b"x").status == 404
    with serving() as server:
        assert server.ask("GET", "/metrics").status == 404
