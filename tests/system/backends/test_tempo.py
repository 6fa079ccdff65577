"""The real Tempo accepts and returns the spans of the stock OTLP exporters, also from its blocks.

These tests do not use this package: a failure here concerns every OpenTelemetry program.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, SpanContext, TraceFlags

from tests.kit.backends import tempo as tempo_backend
from tests.kit.backends.process import BackendError
from tests.kit.backends.tempo import Tempo

from .test_backends import (
    PROTOCOLS,
    expected,
    make_spans,
    seen,
    send,
    trace_id,
)

pytestmark = pytest.mark.backends


@PROTOCOLS
def test_tempo_shows_the_trace(tempo: Tempo, protocol: str) -> None:
    spans = make_spans(20)
    send(protocol, tempo, spans)
    found = tempo.wait_for_trace(trace_id(spans), 20)
    assert len(found) == 20
    assert seen(found) == expected(spans)
    assert {span["traceId"] for span in found} == {trace_id(spans)}
    assert {span["scope"]["name"] for span in found} == {"tests.kit.backends"}
    services = {
        attribute["value"]["stringValue"]
        for span in found
        for attribute in span["resource"]["attributes"]
        if attribute["key"] == "service.name"
    }
    assert services == {"backends-test"}


def test_tempo_has_nothing_of_an_unknown_trace(tempo: Tempo) -> None:
    assert tempo.get_trace("5" * 32) == []


def test_wait_timeout_reports_the_number_of_spans_tempo_shows(tempo: Tempo) -> None:
    spans = make_spans(2)
    send("grpc", tempo, spans)
    tempo.wait_for_trace(trace_id(spans), 2)
    with pytest.raises(BackendError, match="shows 2 of 3 spans"):
        tempo.wait_for_trace(trace_id(spans), 3, seconds=0.1)


class LeadingZeros(RandomIdGenerator):
    """Generates trace ids that Tempo's search shortens, because they begin with zeros."""

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() >> 16


def test_a_search_finds_traces_and_their_links(tempo: Tempo) -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(
        resource=Resource({"service.name": "searched"}), id_generator=LeadingZeros()
    )
    provider.add_span_processor(SimpleSpanProcessor(memory))
    there = SpanContext(2**127 + 5, 2**63 + 7, is_remote=True, trace_flags=TraceFlags(1))
    with provider.get_tracer("tests").start_as_current_span("found", links=[Link(there)]):
        pass
    spans = memory.get_finished_spans()
    send("grpc", tempo, spans)
    (found,) = tempo.wait_for_search('{ resource.service.name = "searched" && name = "found" }')
    assert found["traceID"] == trace_id(spans)
    (span,) = tempo.get_trace(found["traceID"])
    (link,) = span["links"]
    assert (link["traceId"], link["spanId"]) == (f"{2**127 + 5:032x}", f"{2**63 + 7:016x}")
    with pytest.raises(BackendError, match="Tempo answered 400"):
        tempo.search("{ nothing of the kind")


def test_blocks_survive_a_kill_and_the_loss_of_all_else(tmp_path: Path) -> None:
    spans, later = make_spans(300), make_spans(5)
    with tempo_backend.tempo(tmp_path) as before:
        before.flush()  # there is no span to flush
        send("grpc", before, spans)
        before.wait_for_trace(trace_id(spans), 300)
        before.flush()
        send("grpc", before, later)
        before.wait_for_trace(trace_id(later), 5)
        before.process.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(before.process.pid, 0)
    shutil.rmtree(tmp_path / "wal")
    with tempo_backend.tempo(tmp_path) as after:
        found = after.wait_for_trace(trace_id(spans), 300)
        assert seen(found) == expected(spans)
        assert len(found) == 300
        assert after.get_trace(trace_id(later)) == []


def test_spans_discarded_by_tempo_are_counted(tmp_path: Path) -> None:
    # Tempo answers 200 even if it discards the spans: only this metric reports it.
    default = tempo_backend.TEMPO.read_text()
    config = f"{default}overrides: {{defaults: {{global: {{max_bytes_per_trace: 2000}}}}}}\n"
    spans = make_spans(50)
    with tempo_backend.tempo(tmp_path, config) as backend:
        send("grpc", backend, spans[:5])
        assert backend.metric("tempo_discarded_spans_total") == 0
        send("grpc", backend, spans[5:])
        assert backend.metric("tempo_discarded_spans_total") == 45
        assert backend.metric("tempo_distributor_spans_received_total") == 50
        assert len(backend.get_trace(trace_id(spans))) == 5
