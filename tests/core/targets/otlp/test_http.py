"""Pushes over OTLP/HTTP to a real server."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from cirron_otel.core.delivery.errors import PushResult, RefusedError, UnreachableError
from cirron_otel.core.otlp.json_codec import traces_from_json
from cirron_otel.core.targets.otlp.config import OtlpCompression, OtlpProtocol
from cirron_otel.core.targets.otlp.pusher import Pusher
from cirron_otel.errors import EndpointError, InputError
from tests.kit.servers.servers import (
    JSON,
    PROTOBUF,
    Answer,
    Post,
    RecordedStop,
    http_receiver,
    span_ids,
    traces,
)

from .http_pushes import config_for, push


@pytest.mark.parametrize("compression", OtlpCompression)
def test_request_bytes_arrive_unchanged(compression: OtlpCompression) -> None:
    request = traces(100)
    with http_receiver() as server:
        result = push(
            server, request, compression=compression, headers={"x-tenant": "a", "x-b": "é"}
        )
    assert result == PushResult(accepted_spans=100, requests=1)
    (post,) = server.posts
    assert post.path == "/v1/traces"
    assert post.body == request
    assert post.headers["content-type"] == "application/x-protobuf"
    assert post.headers["x-tenant"] == "a"
    assert post.headers["user-agent"].startswith("cirron-otel/")
    if compression is OtlpCompression.NONE:
        assert "content-encoding" not in post.headers
    else:
        assert post.headers["content-encoding"] == compression
        assert len(post.raw) < len(request) / 2


def test_configured_headers_override_the_defaults() -> None:
    with http_receiver() as server:
        push(server, traces(1), headers={"content-type": "a/b", "user-agent": "mine"})
    assert server.posts[0].headers["content-type"] == "a/b"
    assert server.posts[0].headers["user-agent"] == "mine"


def test_http_json() -> None:
    request = traces(3, unknown=b"")
    answer = Answer(
        body=b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too old"}}', headers=JSON
    )
    with http_receiver(answer, Answer(body=b"{}", headers=JSON)) as server:
        config = config_for(server, protocol=OtlpProtocol.HTTP_JSON)
        with Pusher(config) as pusher:
            assert pusher.push(request) == PushResult(2, 1, "too old", requests=1)
            # What JSON cannot say is told; here the unknown field.
            assert pusher.push(traces(2)).warnings == (
                "unknown protobuf fields cannot be represented in JSON",
            )
            with pytest.raises(InputError, match="not a TracesData"):
                pusher.push(b"\x0a\x05")
    assert server.posts[0].headers["content-type"] == "application/json"
    sent, warnings = traces_from_json(server.posts[0].body)
    assert (sent.SerializeToString(), warnings) == (request, [])


def test_an_empty_request_is_not_sent() -> None:
    with http_receiver() as server:
        assert push(server, b"") == PushResult()
    assert server.posts == []


def partial(rejected: int, message: str) -> Answer:
    body = ExportTraceServiceResponse(
        partial_success=ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    )
    return Answer(body=body.SerializeToString(), headers=PROTOBUF)


def test_partial_success() -> None:
    answers = [partial(0, ""), partial(3, "bad\nids"), partial(0, "deprecated"), partial(99, "all")]
    with http_receiver(*answers) as server:
        assert push(server, traces(5)) == PushResult(5, requests=1)
        assert push(server, traces(5)) == PushResult(2, 3, "bad ids", requests=1)
        assert push(server, traces(5)) == PushResult(5, 0, "deprecated", requests=1)
        assert push(server, traces(5)) == PushResult(0, 5, "all", requests=1)


@pytest.mark.parametrize(
    ("answer", "warns"),
    [
        (Answer(), False),
        (Answer(status=202, body=b"{}", headers=JSON), False),
        (Answer(body=b"\xff\xff\xff", headers=PROTOBUF), True),
        (Answer(body=b"null", headers=JSON), True),
        (Answer(body=b"[" * 100_000, headers=JSON), True),
        (Answer(body=b"x" * 2_000_000, headers=PROTOBUF), True),
        (Answer(body=b"cut", headers={"Content-Length": "50", **PROTOBUF}), True),
        (Answer(body=b"junk", headers={"Content-Encoding": "gzip", **PROTOBUF}), True),
    ],
)
def test_accepted_is_accepted_whatever_the_answer_looks_like(answer: Answer, warns: bool) -> None:
    with http_receiver(answer) as server:
        result = push(server, traces(2), timeout=0.5 if "Content-Length" in answer.headers else 20)
    assert (result.accepted_spans, result.rejected_spans, result.error_message) == (2, 0, "")
    assert bool(result.warnings) == warns
    assert len(server.posts) == 1


def test_web_page_does_not_count_as_acceptance() -> None:
    page = Answer(body=b"<html>log in</html>", headers={"Content-Type": "text/html; charset=x"})
    with http_receiver(page) as server, pytest.raises(RefusedError, match="is a web page"):
        push(server, traces(1))


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retryable_status_codes_are_retried(status: int) -> None:
    request = traces(4)
    with http_receiver(Answer(status), Answer(status)) as server:
        assert push(server, request) == PushResult(4, requests=1)
    assert [post.body for post in server.posts] == [request] * 3


@pytest.mark.parametrize("status", [301, 400, 401, 404, 408, 411, 500, 501, 505])
def test_everything_else_is_refused_at_once(status: int) -> None:
    with (
        http_receiver(Answer(status, headers={"Location": "/"})) as server,
        pytest.raises(RefusedError) as caught,
    ):
        push(server, traces(1))
    assert len(server.posts) == 1
    assert f"{server.url} did not accept: {status}" in str(caught.value)
    assert isinstance(caught.value, EndpointError)
    assert caught.value.exit_code == 5
    if status == 401:
        assert "OTEL_EXPORTER_OTLP_HEADERS" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (Status(code=3, message="no such tenant").SerializeToString(), PROTOBUF),
        (b'{"code":3,"message":"no such tenant"}', JSON),
        (b"no such\r\n tenant\n", {"Content-Type": "text/plain"}),
        (b"no such\x00\x1b tenant", {}),
    ],
)
def test_server_message_is_reported_in_one_line(body: bytes, headers: dict[str, str]) -> None:
    with (
        http_receiver(Answer(400, body, headers)) as server,
        pytest.raises(RefusedError) as caught,
    ):
        push(server, traces(1))
    assert str(caught.value).endswith("400 Bad Request (no such tenant)")


@pytest.mark.parametrize(
    ("body", "headers"),
    [(b"\xff\xff", PROTOBUF), (b"{", JSON), (b"x" * 3_000_000, {}), (b'{"message":5}', JSON)],
)
def test_a_garbled_error_is_still_one_line(body: bytes, headers: dict[str, str]) -> None:
    with (
        http_receiver(Answer(400, body, headers)) as server,
        pytest.raises(RefusedError, match="400 Bad Request") as caught,
    ):
        push(server, traces(1))
    assert len(str(caught.value)) < 500


def test_no_secret_is_reported() -> None:
    def echo(post: Post) -> Answer:
        return Answer(403, f"{post.headers['authorization']} is wrong".encode())

    with http_receiver(echo) as server:
        url = server.url.replace("//", "//user:passw0rd@") + "?key=sesame"
        with pytest.raises(RefusedError) as caught:
            push(
                server,
                traces(1),
                endpoint=url,
                headers={"authorization": "Bearer s3cret", "x": "1"},
            )
    assert server.posts[0].path.endswith("?key=sesame")
    text = str(caught.value)
    assert "(*** is wrong)" in text
    assert not any(secret in text for secret in ("s3cret", "passw0rd", "sesame"))


def test_authorization_header_overrides_netrc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with http_receiver() as server:
        push(server, traces(1), headers={"authorization": "Bearer s3cret"})
    assert server.posts[0].headers["authorization"] == "Bearer s3cret"


def test_retry_after_in_seconds_is_obeyed() -> None:
    stop = RecordedStop()
    answers = [Answer(429, headers={"Retry-After": text}) for text in ("7", "0", "soon", "nan")]
    with http_receiver(*answers) as server:
        assert push(server, traces(1), {"stop": stop}).accepted_spans == 1
    assert stop.waits[:2] == [7.0, 0.05]
    assert all(0.005 < wait < 0.05 for wait in stop.waits[2:])  # our own backoff
    assert len(stop.waits) == 4


def test_retry_after_as_a_date_is_obeyed() -> None:
    stop = RecordedStop()
    dates = [formatdate(time.time() + 3600, usegmt=True), "Fri, 31 Dec 1999 23:59:59 GMT"]
    answers = [Answer(503, headers={"Retry-After": date}) for date in dates]
    with http_receiver(*answers) as server:
        assert push(server, traces(1), {"stop": stop, "deadline": None}).accepted_spans == 1
    assert 3500 < stop.waits[0] <= 3600
    assert stop.waits[1] == 0.05


def test_waiting_beyond_the_deadline_is_pointless() -> None:
    stop = RecordedStop()
    with (
        http_receiver(Answer(503, b"busy", {"Retry-After": "61"})) as server,
        pytest.raises(UnreachableError) as caught,
    ):
        push(server, traces(1), {"stop": stop})
    assert stop.waits == []
    assert len(server.posts) == 1
    assert "503 Service Unavailable (busy): given up after 1 attempts, asked to wait 61 s" in str(
        caught.value
    )


def test_an_endpoint_that_never_recovers_is_given_up() -> None:
    with (
        http_receiver(*[Answer(503)] * 1000) as server,
        pytest.raises(UnreachableError, match=r"503 .* given up after \d+ attempts"),
    ):
        push(server, traces(1), {"deadline": 0.2})
    assert len(server.posts) > 2


def test_a_request_too_large_is_halved_until_it_fits() -> None:
    request = traces(1000)

    def only_small(post: Post) -> Answer:
        return Answer(413 if len(post.body) > 9000 else 200)

    with (
        http_receiver(*[only_small] * 100) as server,
        Pusher(config_for(server)) as pusher,
    ):
        result = pusher.push(request)
        taken = [post.body for post in server.posts if len(post.body) <= 9000]
        assert span_ids(taken) == list(range(1000))
        assert result == PushResult(1000, requests=len(taken))
        refused = len(server.posts) - len(taken)
        assert 1 <= refused <= 4
        # What was learnt is kept: nothing of a second push is refused.
        again = pusher.push(request)
    assert again.accepted_spans == 1000
    assert len(server.posts) == refused + result.requests + again.requests


@pytest.mark.parametrize(
    "too_large",
    [
        Answer(400, b"http: request body too large"),
        Answer(429, b"RATE_LIMITED: batch size (9 bytes) exceeds ingestion limit (burst: 8 bytes)"),
    ],
)
def test_other_answers_may_be_about_size_too(too_large: Answer) -> None:
    with http_receiver(too_large) as server:
        assert push(server, traces(2)) == PushResult(2, requests=2)


def test_a_span_too_large_by_itself_is_rejected_and_the_others_go() -> None:
    def only_small(post: Post) -> Answer:
        return Answer(413 if len(post.body) > 500 else 200)

    request = traces(1, "a") + traces(1, "b" * 1000) + traces(1, "c")
    with http_receiver(*[only_small] * 100) as server:
        result = push(server, request)
        assert (result.accepted_spans, result.refused_spans) == (2, 1)
        assert "a single span of 1" in result.refusal
        assert "413" in result.refusal
        with pytest.raises(RefusedError, match="a single span of") as caught:
            push(server, traces(1, "b" * 1000))
    assert caught.value.result.refused_spans == 1


def test_large_requests_are_split_to_the_byte_limit() -> None:
    request = traces(1000)
    with http_receiver() as server:
        result = push(server, request, {"max_request_bytes": 5000})
    bodies = [post.body for post in server.posts]
    assert max(map(len, bodies)) <= 5000
    assert span_ids(bodies) == list(range(1000))
    assert result == PushResult(1000, requests=len(bodies))


def test_spans_accepted_ahead_of_a_failure_are_reported() -> None:
    with (
        http_receiver(Answer(), Answer(), Answer(400)) as server,
        pytest.raises(RefusedError) as caught,
    ):
        push(server, traces(100), {"max_request_bytes": 500})
    assert caught.value.result.requests == 2
    assert caught.value.result.accepted_spans == len(
        span_ids([post.body for post in server.posts[:2]])
    )


def test_a_json_answer_that_repeats_a_key_is_accepted_with_a_warning() -> None:
    """The number of rejected spans would be lost without notice."""
    body = b'{"partialSuccess":{"rejectedSpans":"1"},"partialSuccess":{}}'
    with http_receiver(Answer(body=body, headers=JSON)) as server:
        result = push(server, traces(3))
    assert result.accepted_spans == 3
    assert result.warnings == ("the answer to accepted spans cannot be read (application/json)",)


def test_json_answers_may_contain_anything() -> None:
    answers = [
        Answer(body=json.dumps(value).encode(), headers=JSON)
        for value in ({"partialSuccess": None}, {"partialSuccess": {"rejectedSpans": 2}}, {"x": 1})
    ]
    with http_receiver(*answers) as server:
        results = [push(server, traces(3)).rejected_spans for _ in answers]
    assert results == [0, 2, 0]
