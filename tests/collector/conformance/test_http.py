"""OTLP/HTTP against the collector's own process: what docs/otlp-conformance.md names by test."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from google.rpc.error_details_pb2 import BadRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.collector.service.options import CollectorOptions
from cirron_otel.collector.service.values import ListenAddress
from tests.kit.servers.otlp_clients import (
    JSON,
    PROTOBUF,
    ask,
    connection,
    full,
    post,
    spans,
    storing,
    unfinished,
)
from tests.kit.servers.serving import Serving

from .conftest import SMALL

EMPTY = {PROTOBUF: b"", JSON: b"{}"}
SPAN = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"s"}]}]}]}'
METRICS = {PROTOBUF: bytes.fromhex("0a0012001a00"), JSON: b'{"resourceMetrics":[{}]}'}

kinds = pytest.mark.parametrize("kind", [PROTOBUF, JSON])


def test_default_ports() -> None:
    receivers = CollectorOptions().receivers
    assert receivers.grpc.address == ListenAddress("localhost", 4317)
    assert receivers.http.address == ListenAddress("localhost", 4318)


@kinds
def test_full_success_is_200_with_the_response_and_nothing_in_it(
    collector: Serving, kind: str
) -> None:
    said = post(collector, spans() if kind == PROTOBUF else SPAN, kind)
    assert (said.status, said.kind, said.body) == (200, kind, EMPTY[kind])
    if kind == PROTOBUF:
        found = ExportTraceServiceResponse.FromString(said.body)
        assert not found.HasField("partial_success")


@kinds
def test_an_empty_request_succeeds(collector: Serving, kind: str) -> None:
    assert post(collector, EMPTY[kind], kind).status == 200


def test_empty_envelope_succeeds_and_is_stored(tmp_path: Path) -> None:
    body = TracesData()
    body.resource_spans.add(schema_url="https://a")
    with storing(tmp_path / "data") as (here, found):
        assert post(here, body.SerializeToString()).status == 200
    assert found == list(body.resource_spans)


# what is sent, as its Content-Type, and the status: each is refused for good
BAD: dict[str, tuple[bytes, str, int]] = {
    "cut off": (spans(3)[:-1], PROTOBUF, 400),
    "wrong wire type": (b"\x0f", PROTOBUF, 400),
    "text that is no UTF-8": (bytes.fromhex("0a061a04ff616263"), PROTOBUF, 400),
    "JSON as protobuf": (SPAN, PROTOBUF, 400),
    "protobuf as JSON": (spans(), JSON, 400),
    "JSON cut off": (SPAN[:-1], JSON, 400),
    "a list": (b"[]", JSON, 400),
    "an id that is no hex": (SPAN.replace(b'"name":"s"', b'"traceId":"xyz"'), JSON, 400),
    "a number as text": (SPAN.replace(b'"s"', b"5"), JSON, 400),
}


@pytest.mark.parametrize(("body", "kind", "status"), BAD.values(), ids=BAD)
def test_bad_data_returns_400_with_a_descriptive_status(
    collector: Serving, body: bytes, kind: str, status: int
) -> None:
    said = post(collector, body, kind)
    assert (said.status, said.kind) == (status, kind)
    assert "retry-after" not in said.headers
    assert said.error.message
    (detail,) = said.error.details
    bad = BadRequest()
    assert detail.Unpack(bad)
    assert [violation.description for violation in bad.field_violations] == [said.error.message]


@pytest.mark.parametrize(
    ("method", "path", "kind", "status"),
    [
        ("GET", "/v1/traces", PROTOBUF, 405),
        ("PUT", "/v1/traces", PROTOBUF, 405),
        ("POST", "/v1development/profiles", PROTOBUF, 404),
        ("POST", "/v1/metrics", PROTOBUF, 404),
        ("POST", "/v1/metrics", JSON, 404),
        ("POST", "/v1/traces", "text/plain", 415),
        ("POST", "/v1/traces", "application/x-protobuf-nearly", 415),
    ],
)
def test_other_refusals_have_a_status_body_and_are_final(
    collector: Serving, method: str, path: str, kind: str, status: int
) -> None:
    with connection(collector) as client:
        said = ask(client, method, path, METRICS.get(kind, b""), Content_Type=kind)
    assert said.status == status
    assert said.kind == (PROTOBUF if kind == PROTOBUF else JSON)
    assert said.error.message
    assert "retry-after" not in said.headers
    assert ("allow" in said.headers) == (status == 405)


@kinds
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_more_than_the_limit_is_413(small: Serving, kind: str, coding: str) -> None:
    """One byte more than is taken, counted as it is after decompression."""
    tail = b'", "resourceSpans": []}'
    for size in (SMALL, SMALL + 1):
        if kind == JSON:
            body = b'{"x": "' + b" " * (size - 7 - len(tail)) + tail
            assert len(body) == size
        else:
            body = b"\x7a" + _varint(size - 4) + b" " * (size - 4)  # an unknown field
            assert len(body) == size
        packed = gzip.compress(body) if coding == "gzip" else body
        said = post(small, packed, kind, Content_Encoding=coding)
        assert (said.status == 413) == (size > SMALL)
        assert said.kind == kind
        if size > SMALL:
            assert str(SMALL) in said.error.message
            assert "retry-after" not in said.headers


def _varint(value: int) -> bytes:
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))


@kinds
def test_more_elements_than_are_taken_are_413(small: Serving, kind: str) -> None:
    many = SPAN.replace(b'{"name":"s"}', b",".join([b"{}"] * 1001))
    said = post(small, spans(1001) if kind == PROTOBUF else many, kind)
    assert (said.status, said.kind) == (413, kind)
    assert "1000 elements" in said.error.message


@kinds
@pytest.mark.parametrize("coding", ["gzip", "identity", "zstd"])
def test_codings_are_undone(collector: Serving, kind: str, coding: str) -> None:
    import zstandard

    pack = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}[coding]
    body = spans() if kind == PROTOBUF else SPAN
    assert post(collector, pack(body), kind, Content_Encoding=coding).status == 200


@pytest.mark.parametrize(
    ("coding", "status"), [("br", 415), ("gzip", 400), ("gzip, gzip", 415), ("compress", 415)]
)
def test_codings_that_are_not_known_or_not_so(collector: Serving, coding: str, status: int) -> None:
    said = post(collector, spans(), Content_Encoding=coding)
    assert said.status == status
    assert ("accept-encoding" in said.headers) == (coding in ("br", "compress"))


def test_an_answer_is_not_compressed_and_is_read_by_who_asks_for_gzip(collector: Serving) -> None:
    said = post(collector, b"\xff", Accept_Encoding="gzip")
    assert "content-encoding" not in said.headers
    assert said.error.message


@pytest.mark.parametrize("is_chunked", [False, True])
def test_with_a_length_and_in_chunks(collector: Serving, is_chunked: bool) -> None:
    body = spans(500)
    pieces = iter([body[at : at + 777] for at in range(0, len(body), 777)])
    assert post(collector, pieces if is_chunked else body).status == 200


def test_connection_is_reused_across_encodings_and_bad_requests(collector: Serving) -> None:
    with connection(collector) as client:
        for kind, body, status in (
            (PROTOBUF, spans(), 200),
            (JSON, SPAN, 200),
            (JSON, b"[]", 400),
            (PROTOBUF, spans(), 200),
        ):
            first = client.sock
            assert ask(client, "POST", "/v1/traces", body, Content_Type=kind).status == status
            assert first is None or client.sock is first


def test_parallel_connections(tmp_path: Path) -> None:
    """Each has its own answer, and all is stored."""
    statuses: list[int] = []
    with storing(tmp_path / "data") as (here, found):

        def send() -> None:
            for _ in range(5):
                statuses.append(post(here, spans()).status)

        threads = [threading.Thread(target=send) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses == [200] * 60
    assert len(found) == 60


def test_overload_is_429_with_the_time_to_wait(small: Serving) -> None:
    """What is in flight fills the room; when that has gone the same request is taken."""
    body = spans()
    with full(small, SMALL - 10):
        said = post(small, body)
        assert said.status == 429
        assert re.fullmatch(r"[1-9]\d*", said.headers["retry-after"])
        assert said.error.message
    assert post(small, body).status == 200


@kinds
def test_a_warning_is_a_partial_success_that_rejects_nothing(small: Serving, kind: str) -> None:
    said = post(small, METRICS[kind], kind, "/v1/metrics")
    assert (said.status, said.kind) == (200, kind)
    if kind == PROTOBUF:
        partial = ExportMetricsServiceResponse.FromString(said.body).partial_success
        assert partial.rejected_data_points == 0
        assert partial.error_message
    else:
        assert re.fullmatch(rb'\{"partialSuccess": \{"errorMessage": "[^"]+"\}\}', said.body)


def test_resent_request_is_acknowledged_and_stored_once(tmp_path: Path) -> None:
    body = spans(3)
    with storing(tmp_path / "data") as (here, found):
        for _ in range(3):
            assert post(here, body).status == 200
        assert post(here, gzip.compress(body), Content_Encoding="gzip").status == 200
    assert len(found) == 1


def test_unknown_fields_are_preserved(tmp_path: Path) -> None:
    """Those of a newer version of the protocol, wherever they stand."""
    body = ExportTraceServiceRequest.FromString(spans())
    span = body.resource_spans[0].scope_spans[0].spans[0]
    span.MergeFromString(bytes.fromhex("a23e056e65776572a03e07"))  # fields 1000, 1004
    body.resource_spans[0].MergeFromString(bytes.fromhex("a23e0178"))
    with storing(tmp_path / "data") as (here, found):
        assert post(here, body.SerializeToString()).status == 200
    assert [each.SerializeToString() for each in found] == [
        body.resource_spans[0].SerializeToString()
    ]


def test_a_client_that_asks_for_http_2_is_answered_in_1_1(collector: Serving) -> None:
    """As an upgrade, which a server may pass over (RFC 9110, 7.8)."""
    said = post(collector, spans(), Connection="Upgrade, HTTP2-Settings", Upgrade="h2c",
                HTTP2_Settings="AAMAAABkAAQCAAAAAAIAAAAA")  # fmt: skip
    assert said.status == 200


def test_a_body_that_ends_too_soon_is_not_taken(tmp_path: Path) -> None:
    with storing(tmp_path / "data") as (here, found):
        with unfinished(here, 1000, spans()):
            pass
        with connection(here) as client, contextlib.suppress(http.client.HTTPException):
            client.putrequest("POST", "/v1/traces")
            client.putheader("Content-Type", PROTOBUF)
            client.putheader("Transfer-Encoding", "chunked")
            client.endheaders()
            client.send(b"5\r\n" + spans()[:5] + b"\r\n")
        assert post(here, spans(name="whole")).status == 200
    names: list[Any] = [span.name for each in found for span in each.scope_spans[0].spans]
    assert names == ["whole"]
