"""A real Collector ahead of ours: every compression that it can send, over both transports."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from tests.collector.service.test_figures import samples
from tests.collector.service.test_running import record
from tests.kit.backends import run
from tests.kit.servers.away import until
from tests.kit.servers.serving import serving

pytestmark = pytest.mark.backends

COMPRESSIONS = {
    "otlp_grpc": ("none", "gzip", "zstd", "snappy"),
    "otlp_http": (
        "none", "gzip", "zstd", "deflate", "zlib", "snappy", "x-snappy-framed", "lz4",
    ),
}  # fmt: skip
SPANS = 40
CONFIG = """
extensions:
  health_check: {endpoint: "${env:HEALTH}"}
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "${env:OTLP_GRPC}"}
      http: {endpoint: "${env:OTLP_HTTP}"}
processors:
  batch: {send_batch_size: %(spans)d, timeout: 60s}
exporters:
%(exporters)s
service:
  extensions: [health_check]
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], processors: [batch], exporters: [%(names)s]}
"""


def config(grpc: str, http: str) -> str:
    """An exporter for each compression; each is a tenant, so that none repeats another."""
    endpoints = {"otlp_grpc": grpc, "otlp_http": http}
    lines = [
        f"  {kind}/{name}: {{endpoint: '{endpoints[kind]}', compression: '{name}',"
        f" tls: {{insecure: true}}, headers: {{x-scope-orgid: {kind}-{name}}}}}"
        for kind, names in COMPRESSIONS.items()
        for name in names
    ]
    names = [f"{kind}/{name}" for kind, names in COMPRESSIONS.items() for name in names]
    return CONFIG % {"spans": SPANS, "exporters": "\n".join(lines), "names": ", ".join(names)}


def test_spans_from_a_collector_are_stored_under_every_compression(tmp_path: Path) -> None:
    folder = tmp_path / "otelcol"
    folder.mkdir()
    with serving(tmp_path / "data") as here:
        with run.otelcol(config(here.grpc, here.http), folder) as theirs:
            record(OTLPSpanExporter(f"{theirs.otlp_http}/v1/traces"), SPANS)
            wanted = {
                ("received_requests_total", "traces", transport[5:]): len(names)
                for transport, names in COMPRESSIONS.items()
            }
            until(lambda: wanted.items() <= samples(here).items())
        stored = SPANS * sum(map(len, COMPRESSIONS.values()))
        until(lambda: samples(here).get(("stored_records_total", "span", "spool")) == stored)
        assert not [key for key in samples(here) if key[0] == "refused_requests_total"]
