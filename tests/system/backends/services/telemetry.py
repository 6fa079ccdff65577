"""How a service sets up its telemetry: the stock way, with Cirron beside it; or Cirron alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import cirron_otel as ci

Finish = Callable[[], dict[str, Any]]


def stock_provider() -> TracerProvider:
    """What an application has: a BatchSpanProcessor in front of the OTLP exporter."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def start(mode: str, directory: str) -> Finish:
    """Set it up; what is returned ends it, and says how it went.

    `application`: ci.profile() in the application's provider. `processor`: nothing but
    CirronSpanProcessor in it, before the provider is set. `late processor`: after. `own`:
    ci.profile() alone.
    """
    provider = None if mode == "own" else stock_provider()
    if provider is not None and mode != "processor":
        trace.set_tracer_provider(provider)
    if provider is not None and "processor" in mode:
        provider.add_span_processor(
            ci.CirronSpanProcessor(output_dir=directory, frameworks=[], flush_interval=0.05)
        )
        if mode == "processor":
            trace.set_tracer_provider(provider)
    else:
        ci.profile(output_dir=directory, frameworks=[], flush_interval=0.05)
    assert provider is None or trace.get_tracer_provider() is provider

    def finish() -> dict[str, Any]:
        done = ci.shutdown()
        if provider is not None:
            provider.shutdown()
        health = ci.health()
        return {"done": done, "errors": health["swallowed_errors"], "enabled": health["enabled"]}

    return finish
