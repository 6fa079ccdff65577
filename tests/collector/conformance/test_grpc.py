"""OTLP/gRPC against the collector's own process: what docs/otlp-conformance.md names by test."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.kit.servers.otlp_clients import (
    METRICS,
    SERVICE,
    TRACES,
    Ended,
    call,
    channel,
    ended,
    full,
    spans,
    storing,
)
from tests.kit.servers.serving import Serving

from .conftest import SMALL

GZIP, NONE = grpc.Compression.Gzip, grpc.Compression.NoCompression
codings = pytest.mark.parametrize("coding", [NONE, GZIP])


@codings
def test_full_success_is_the_response_and_nothing_in_it(
    collector: Serving, coding: grpc.Compression
) -> None:
    answer = call(collector, spans(200), compression=coding)
    assert answer == Ended("OK")
    assert not ExportTraceServiceResponse.FromString(answer.body).HasField("partial_success")


@codings
def test_an_empty_request_succeeds(collector: Serving, coding: grpc.Compression) -> None:
    assert call(collector, b"", compression=coding) == Ended("OK")


@codings
@pytest.mark.parametrize(
    "body", [b"\xff\xff", spans(3)[:-1], bytes.fromhex("0a061a04ff616263")],
    ids=["garbage", "cut off", "no UTF-8"],
)  # fmt: skip
def test_bad_data_is_final(collector: Serving, body: bytes, coding: grpc.Compression) -> None:
    answer = call(collector, body, compression=coding)
    assert (answer.code, answer.retry_after_s) == ("INVALID_ARGUMENT", None)
    assert answer.message


@codings
def test_more_than_the_limit_is_final(small: Serving, coding: grpc.Compression) -> None:
    """Counted after decompression."""
    answer = call(small, b"\x7a" + b"\xff\xff\x3f" + bytes(SMALL), compression=coding)
    assert (answer.code, answer.retry_after_s) == ("RESOURCE_EXHAUSTED", None)
    assert answer.message


def test_more_elements_than_are_taken_are_final(small: Serving) -> None:
    answer = call(small, spans(1001))
    assert (answer.code, answer.retry_after_s) == ("RESOURCE_EXHAUSTED", None)
    assert "1000 elements" in answer.message


def test_overload_is_unavailable_with_the_time_to_wait(small: Serving) -> None:
    """What is in flight fills the room; when that has gone the same request is taken."""
    body = spans()
    with full(small, SMALL - 10):
        answer = call(small, body)
        assert answer.code == "UNAVAILABLE"
        assert answer.retry_after_s is not None
        assert answer.retry_after_s > 0
    assert call(small, body).code == "OK"


def test_a_warning_is_a_partial_success_that_rejects_nothing(small: Serving) -> None:
    answer = call(small, bytes.fromhex("0a0012001a00"), METRICS)
    assert answer.code == "OK"
    partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
    assert partial.rejected_data_points == 0
    assert partial.error_message


@pytest.mark.parametrize(
    "method", [METRICS, SERVICE.format("profiles", "Profiles").replace(".v1.", ".v1development.")]
)
def test_unsupported_signals_are_unimplemented(collector: Serving, method: str) -> None:
    answer = call(collector, b"\x0a\x00", method)
    assert (answer.code, answer.retry_after_s) == ("UNIMPLEMENTED", None)


def test_concurrent_calls_on_one_connection(tmp_path: Path) -> None:
    """Sent without waiting for the answers to those before; each has its own."""
    good = [spans(20, f"n{number}") for number in range(150)]
    with storing(tmp_path / "data") as (here, found), channel(here) as own:
        method = own.unary_unary(TRACES)
        calls = [method.future(body, timeout=60) for body in [*good, b"\xff", b""]]
        codes = [ended(each).code for each in calls]
    assert codes == ["OK"] * 150 + ["INVALID_ARGUMENT", "OK"]
    names = {each.scope_spans[0].spans[0].name for each in found}
    assert names == {f"n{number}" for number in range(150)}


def test_unknown_fields_are_preserved(tmp_path: Path) -> None:
    body = ExportTraceServiceRequest.FromString(spans())
    body.resource_spans[0].scope_spans[0].MergeFromString(bytes.fromhex("a23e056e65776572"))
    with storing(tmp_path / "data") as (here, found):
        assert call(here, body.SerializeToString()).code == "OK"
    assert found == list(body.resource_spans)


def test_repeated_requests_are_acknowledged_and_stored_once(tmp_path: Path) -> None:
    body = spans(3)
    with storing(tmp_path / "data") as (here, found):
        assert [call(here, body).code for _ in range(3)] == ["OK"] * 3
    assert len(found) == 1
