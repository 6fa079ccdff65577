"""Behind a real Collector: stock SDK → otelcol → us → spool → OTLP is what was sent."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)

from tests.kit.backends import run
from tests.kit.servers.serving import Serving, serving
from tests.kit.spools.comparing import cirron_otel

from .through import as_a_collector_hands_it_on, messages_of, spans_in

pytestmark = pytest.mark.backends

TEE = """
extensions:
  health_check: {endpoint: "${env:HEALTH}"}
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "${env:OTLP_GRPC}"}
      http: {endpoint: "${env:OTLP_HTTP}"}
exporters:
  file: {path: "${env:DIR}/spans.jsonl", flush_interval: 100ms}
  # Without a queue, it acknowledges what we have acknowledged.
  otlp_grpc: {endpoint: "${env:OURS_GRPC}", tls: {insecure: true}, sending_queue: {enabled: false}}
  otlp_http: {endpoint: "${env:OURS_HTTP}", sending_queue: {enabled: false}}
service:
  extensions: [health_check]
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [file, "${env:EXPORTER}"]}
"""
CALLER = SpanContext(
    0x0AF7651916CD43DD8448EB211C80319C,
    0xB7AD6B7169203331,
    is_remote=True,
    trace_flags=TraceFlags(1),
    trace_state=TraceState([("vendor", "a:1"), ("other", "b")]),
)


def otelcol_before(
    here: Serving, exporter: str, folder: Path
) -> AbstractContextManager[run.Otelcol]:
    """A real Collector that hands on to us, and writes down beside it what it hands on."""
    folder.mkdir()
    to = {"OURS_GRPC": here.grpc, "OURS_HTTP": here.http, "EXPORTER": exporter}
    return run.otelcol(TEE, folder, to)


def application(exporter: SpanExporter) -> TracesData:
    """A stock SDK's spans with all that it can say, exported; what the exporter was given."""
    memory = InMemorySpanExporter()
    resource = Resource(
        {"service.name": "shop", "host.cpus": 8, "tags": ["a", "b"]}, "https://schema.example/1.2"
    )
    provider = TracerProvider(
        resource=resource,
        span_limits=SpanLimits(
            max_events=4, max_links=2, max_span_attributes=14, max_event_attributes=2
        ),
    )
    provider.add_span_processor(SimpleSpanProcessor(memory))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    for name in ("a.library", "another"):
        tracer = provider.get_tracer(
            name, "1.2", "https://schema.example/3.4", attributes={"kind": name, "n": 3}
        )
        for number in range(12):
            record(tracer, number)
    assert provider.force_flush(60_000)
    provider.shutdown()
    spans = memory.get_finished_spans()
    assert any(span.dropped_attributes and span.dropped_events for span in spans)
    assert any(span.dropped_links for span in spans)
    return TracesData(resource_spans=encode_spans(spans).resource_spans)


def record(tracer: Tracer, number: int) -> None:
    """A server's span below a remote caller, and one below it."""
    parent = set_span_in_context(NonRecordingSpan(CALLER)) if number % 2 else None
    links = [Link(CALLER, {"why": "retry", "n": each}) for each in range(number % 4)]
    kind = list(SpanKind)[number % 5]
    with tracer.start_as_current_span(f"outer {number}", parent, kind, links=links) as span:
        span.set_attributes(
            {
                "text": "é\u2028\0\U0001f642", "empty": "", "yes": True, "no": False,
                "int": 2**63 - 1, "negative": -(2**63), "double": 0.1, "whole": 1.0,
                "negative zero": -0.0, "infinite": -math.inf, "strings": ["a", ""],
                "ints": [1, 2**53 + 1], "doubles": [1.0, 0.5], "bools": [True, False],
            }
        )  # fmt: skip
        for each in range(number):
            span.set_attribute(f"more {each}", each)
            span.add_event(f"event {each}", {"at": each, "x": 0.5, "dropped": True}, each)
        if number % 3:
            code = StatusCode.ERROR if number % 3 == 1 else StatusCode.OK
            span.set_status(Status(code, "out of memory" if number % 3 == 1 else None))
        with tracer.start_as_current_span("inner", kind=SpanKind.CLIENT):
            pass


@pytest.mark.parametrize("exporter", ["otlp_grpc", "otlp_http"])
def test_a_stock_sdk_through_a_collector_into_us(exporter: str, tmp_path: Path) -> None:
    """Equal to what was sent; the Collector itself changes nothing of what a stock SDK says."""
    with serving(tmp_path / "data") as here:
        with otelcol_before(here, exporter, tmp_path / "otelcol") as between:
            sent = application(
                GrpcExporter(endpoint=f"http://{between.otlp_grpc}", insecure=True)
                if exporter == "otlp_grpc"
                else HttpExporter(endpoint=f"{between.otlp_http}/v1/traces")
            )
            between.wait_for_spans(48)
        assert here.end() == 0
    cirron_otel("convert", tmp_path / "data", tmp_path / "back.binpb")
    found = spans_in(messages_of(tmp_path / "back.binpb"))
    assert found == spans_in(messages_of(between.output))
    assert found == spans_in([sent])
    assert found.total() == 48


def odd() -> TracesData:
    """What the protocol allows, and no stock SDK says."""
    message = TracesData()
    group = message.resource_spans.add(schema_url="https://schema.example/1.2")
    group.resource.attributes.add(key="host.name").value.string_value = "a"
    group.resource.dropped_attributes_count = 3
    group.resource.entity_refs.add(type="host", id_keys=["host.name"])
    scoped = group.scope_spans.add(schema_url="https://schema.example/3.4")
    scoped.scope.name, scoped.scope.dropped_attributes_count = "odd", 2
    values = [
        AnyValue(), AnyValue(bytes_value=b"\0\xff"), AnyValue(double_value=math.nan),
        AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="", value=AnyValue())])),
        AnyValue(string_value=""),
    ]  # fmt: skip
    for number in range(4):
        span = scoped.spans.add(
            trace_id=bytes([number + 1]) * 16,
            span_id=bytes([number + 1]) * 8,
            trace_state="vendor=1",
            flags=0x301,
            kind=Span.SPAN_KIND_PRODUCER,
            dropped_links_count=7,
        )
        span.attributes.extend(KeyValue(key=f"{n}", value=v) for n, v in enumerate(values))
        span.attributes.add(key="0").value.int_value = 1  # a key that repeats
        link = span.links.add(trace_id=b"t" * 16, span_id=b"s" * 8, trace_state="x=y", flags=0x100)
        link.dropped_attributes_count = 1
        span.events.add(name="", time_unix_nano=2**63, dropped_attributes_count=1)
    scoped.spans[1].status.SetInParent()
    scoped.spans[2].MergeFromString(b"\xfa\x07\x05later")  # field 127, which nobody knows
    message.resource_spans.add().scope_spans.add().spans.add(
        name="bare", trace_id=b"b" * 16, span_id=b"b" * 8, end_time_unix_nano=9
    )
    return message


def test_spans_differ_only_by_changes_of_the_otel_collector(tmp_path: Path) -> None:
    """Beside us, its own file says it: `as_a_collector_hands_it_on`; we change nothing."""
    sent = odd()
    with serving(tmp_path / "data") as here:
        with (
            otelcol_before(here, "otlp_grpc", tmp_path / "otelcol") as between,
            grpc.insecure_channel(between.otlp_grpc) as channel,
        ):
            request = ExportTraceServiceRequest(resource_spans=sent.resource_spans)
            TraceServiceStub(channel).Export(request, timeout=30, wait_for_ready=True)
            between.wait_for_spans(5)
        assert here.end() == 0
    cirron_otel("convert", tmp_path / "data", tmp_path / "back.binpb")
    found = spans_in(messages_of(tmp_path / "back.binpb"))
    assert found == spans_in(as_a_collector_hands_it_on([sent]))
    assert found == spans_in(messages_of(between.output))
    assert found != spans_in([sent])
