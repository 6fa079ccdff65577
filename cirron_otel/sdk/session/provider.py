"""The TracerProvider: the application's if it has set one, otherwise the SDK's.

The SDK's provider loses nothing: events, links, and attributes are not limited unless the
environment sets limits, and spans that its sampler drops are still recorded, but not exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import urandom
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState

_LIMITS = {
    "max_events": "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "max_links": "OTEL_SPAN_LINK_COUNT_LIMIT",
    "max_span_attributes": "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "max_event_attributes": "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "max_link_attributes": "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
    "max_attributes": "OTEL_ATTRIBUTE_COUNT_LIMIT",
}


class RandomIds(IdGenerator):
    """Ids from the operating system: training code seeds `random`, so ranks would collide."""

    def generate_span_id(self) -> int:
        """Return eight random bytes, never zero."""
        while True:
            if number := int.from_bytes(urandom(8), "big"):
                return number

    def generate_trace_id(self) -> int:
        """Return sixteen random bytes, never zero."""
        while True:
            if number := int.from_bytes(urandom(16), "big"):
                return number


class RecordAll(Sampler):
    """Wraps a sampler so that dropped spans are still recorded; sampling only affects export."""

    def __init__(self, inner: Sampler) -> None:
        """`inner` decides which spans are exported."""
        self.inner = inner

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Return the decision of `inner`, with RECORD_ONLY in place of DROP."""
        result = self.inner.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )
        if result.decision is Decision.DROP:
            return SamplingResult(Decision.RECORD_ONLY, attributes, result.trace_state)
        return result

    def get_description(self) -> str:
        """Return a description for display."""
        return f"RecordAll({self.inner.get_description()})"


def applications_provider() -> TracerProvider | None:
    """Return the application's provider; None if it has not set an OpenTelemetry SDK provider."""
    provider = trace.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None


def make_provider(resource: Resource, environ: Mapping[str, str]) -> TracerProvider:
    """Create an SDK provider without making it global."""
    unlimited = {
        argument: SpanLimits.UNSET
        for argument, variable in _LIMITS.items()
        if not environ.get(variable)
    }
    provider = TracerProvider(
        resource=resource,
        id_generator=RandomIds(),
        span_limits=SpanLimits(**unlimited),
        shutdown_on_exit=False,
    )
    provider.sampler = RecordAll(provider.sampler)
    return provider


def sampler_of(provider: TracerProvider) -> Sampler | None:
    """Return the sampler that decides which spans are exported."""
    sampler: Any = getattr(provider, "sampler", None)
    return sampler.inner if isinstance(sampler, RecordAll) else sampler


def is_in_worker() -> bool:
    """Return whether this is a DataLoader worker, which traces nothing unless requested."""
    import sys  # noqa: PLC0415 - rarely called

    data = sys.modules.get("torch.utils.data")
    try:
        return data is not None and data.get_worker_info() is not None
    except Exception:
        return False
