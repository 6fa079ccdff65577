"""The real Collector and the real Jaeger accept and return the spans of the stock OTLP exporters.

These tests do not use this package: a failure here concerns every OpenTelemetry program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.kit.backends import run
from tests.kit.backends.process import BackendError, free_endpoints

pytestmark = pytest.mark.backends


def make_spans(count: int) -> Sequence[ReadableSpan]:
    """Return one trace: a root and `count - 1` children, each with an index and an event."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "backends-test"}))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("tests.kit.backends", "1.0")
    with tracer.start_as_current_span("root", attributes={"index": 0}):
        for index in range(1, count):
            with tracer.start_as_current_span("child", attributes={"index": index}) as span:
                span.add_event("mark", {"value": index / 2})
    return memory.get_finished_spans()


def exporter_for(protocol: str, backend: run.Backend) -> SpanExporter:
    if protocol == "grpc":
        return GrpcExporter(endpoint=backend.otlp_grpc, insecure=True)
    return HttpExporter(endpoint=f"{backend.otlp_http}/v1/traces")


def send(protocol: str, backend: run.Backend, *requests: Sequence[ReadableSpan]) -> None:
    exporter = exporter_for(protocol, backend)
    try:
        for spans in requests:
            assert exporter.export(spans) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()


def expected(spans: Sequence[ReadableSpan]) -> set[tuple[str, str, str, int]]:
    return {
        (
            format(span.context.span_id, "016x"),
            format(span.parent.span_id, "016x") if span.parent else "",
            span.name,
            span.start_time or 0,
        )
        for span in spans
    }


def seen(spans: list[dict[str, Any]]) -> set[tuple[str, str, str, int]]:
    return {
        (s["spanId"], s.get("parentSpanId", ""), s["name"], int(s["startTimeUnixNano"]))
        for s in spans
    }


def trace_id(spans: Sequence[ReadableSpan]) -> str:
    return format(spans[0].context.trace_id, "032x")


PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http"])


@PROTOCOLS
def test_collector_writes_the_spans_it_receives(otelcol_file: run.Otelcol, protocol: str) -> None:
    spans = make_spans(20)
    send(protocol, otelcol_file, spans)
    lines = otelcol_file.wait_for_spans(20)
    assert len(lines) == 1
    found = run.spans_of(lines)
    assert seen(found) == expected(spans)
    assert {span["scope"]["name"] for span in found} == {"tests.kit.backends"}


@PROTOCOLS
def test_the_collector_splits_into_batches_of_seven(
    otelcol_split: run.Otelcol, protocol: str
) -> None:
    spans = make_spans(24)
    send(protocol, otelcol_split, spans)
    lines = otelcol_split.wait_for_spans(24)
    assert [len(run.spans_of([line])) for line in lines] == [7, 7, 7, 3]
    assert seen(run.spans_of(lines)) == expected(spans)


def test_the_collector_merges_small_requests(tmp_path: Path) -> None:
    # With this timeout only a full batch is forwarded: the seven requests become one line.
    config = run.SPLIT.read_text().replace("timeout: 200ms", "timeout: 600s")
    spans = make_spans(14)
    with run.otelcol(config, tmp_path) as collector:
        send("grpc", collector, *([span] for span in spans))
        lines = collector.wait_for_spans(14)
    assert [len(run.spans_of([line])) for line in lines] == [7, 7]
    assert seen(run.spans_of(lines)) == expected(spans)


@PROTOCOLS
def test_jaeger_shows_the_trace(jaeger: run.Jaeger, protocol: str) -> None:
    spans = make_spans(20)
    send(protocol, jaeger, spans)
    found = jaeger.wait_for_trace(trace_id(spans), 20)
    assert len(found) == 20
    assert seen(found) == expected(spans)
    services = {
        attribute["value"]["stringValue"]
        for span in found
        for attribute in span["resource"]["attributes"]
        if attribute["key"] == "service.name"
    }
    assert services == {"backends-test"}


def test_jaeger_has_nothing_of_an_unknown_trace(jaeger: run.Jaeger) -> None:
    assert jaeger.get_trace("5" * 32) == []


def test_a_trace_that_takes_many_chunks(jaeger: run.Jaeger) -> None:
    spans = make_spans(12_000)
    send("grpc", jaeger, *(spans[at : at + 1000] for at in range(0, 12_000, 1000)))
    assert seen(jaeger.wait_for_trace(trace_id(spans), 12_000)) == expected(spans)


def test_wait_timeout_reports_the_spans_present(otelcol_file: run.Otelcol) -> None:
    send("grpc", otelcol_file, make_spans(2))
    otelcol_file.wait_for_spans(2)
    with pytest.raises(BackendError, match="holds 2 of 3 spans"):
        otelcol_file.wait_for_spans(3, seconds=0.1)


def test_a_broken_configuration_is_reported_with_the_log(tmp_path: Path) -> None:
    with (
        pytest.raises(BackendError, match=r"(?s)ended before it was ready.*nosuch"),
        run.otelcol("receivers: {nosuch: {}}\n", tmp_path),
    ):
        pass


def test_killed_collector_retains_written_spans(tmp_path: Path) -> None:
    with run.otelcol(run.FILE, tmp_path) as collector:
        send("grpc", collector, make_spans(3))
        collector.wait_for_spans(3)
        collector.process.kill()
        assert not is_alive(collector.process.pid)
        assert len(run.spans_of(collector.wait_for_spans(3))) == 3


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ends_soon(pid: int) -> bool:
    deadline = time.monotonic() + 180
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_nothing_is_left_after_the_block(tmp_path: Path) -> None:
    with run.otelcol(run.FILE, tmp_path) as collector:
        assert is_alive(collector.process.pid)
    assert not is_alive(collector.process.pid)


def test_nothing_survives_a_killed_test_run(tmp_path: Path) -> None:
    script = f"""
        import os, pathlib, signal
        from tests.kit.backends import run
        with run.otelcol(run.FILE, pathlib.Path({str(tmp_path)!r})) as collector:
            print(collector.process.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert result.returncode == -9
    assert ends_soon(int(result.stdout))


def test_free_endpoints_differ() -> None:
    assert len(set(free_endpoints(20))) == 20
