"""The span processor that passes spans of other libraries to the spool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from ..session.errors import record_error
from .foreign_spans import ForeignSpans


class ForeignSpanProcessor(SpanProcessor):
    """Passes foreign spans to the flush thread. Scopes use the hot path and not this processor."""

    def __init__(self, foreign: ForeignSpans) -> None:
        """`foreign` contains the spans while they are open."""
        self.foreign = foreign
        self.is_on = True
        self.met: Callable[[Any, Resource], None] | None = None
        """Called with the provider's processors and resource when its first span begins."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Record that a span begins."""
        if self.is_on:
            try:
                if self.met is not None:
                    met, self.met = self.met, None
                    met(getattr(span, "_span_processor", None), span.resource)
                self.foreign.start(span, parent_context)
            except Exception as error:
                record_error("on_start", error)

    def on_end(self, span: ReadableSpan) -> None:
        """Record a span that has ended."""
        if self.is_on:
            try:
                self.foreign.end(span)
            except Exception as error:
                record_error("on_end", error)


def processors_of(provider: Any) -> tuple[SpanProcessor, ...]:
    """Return the current processors of a provider."""
    multi = getattr(provider, "_active_span_processor", None)
    return tuple(getattr(multi, "_span_processors", ()))


def processor_of(provider: Any) -> ForeignSpanProcessor | None:
    """Return the processor that an earlier session added to the provider; it cannot be removed."""
    ours = (each for each in processors_of(provider) if type(each) is ForeignSpanProcessor)
    return next(ours, None)


class Observers:
    """The provider's other processors, which receive scopes like any other span."""

    def __init__(self, provider: Any, excluded: SpanProcessor) -> None:
        """`excluded` is Cirron's processor: it does not receive scopes."""
        self.processors: Any = getattr(provider, "_active_span_processor", None)
        """All processors of the provider; None while the provider is unknown."""
        self.earlier: tuple[SpanProcessor, ...] = ()
        """Processors that the program added to the SDK's provider before it set its own provider.
        """
        self._excluded = excluded

    def are_of(self, provider: Any) -> bool:
        """Return whether Cirron's processor belongs to the provider."""
        multi = getattr(provider, "_active_span_processor", None)
        return self._excluded in getattr(multi, "_span_processors", ())

    def others(self) -> tuple[SpanProcessor, ...]:
        """Return the current processors other than Cirron's."""
        processors = self.earlier + getattr(self.processors, "_span_processors", ())
        return tuple(each for each in processors if not isinstance(each, ForeignSpanProcessor))

    def start(self, span: Any, context: Any) -> None:
        """Report the beginning of a scope to the other processors."""
        for each in self.others():
            try:
                each.on_start(span, context)
            except Exception as error:
                record_error("on_start of another processor", error)

    def end(self, span: Any) -> None:
        """Report the end of a scope to the other processors."""
        for each in self.others():
            try:
                each.on_end(span)
            except Exception as error:
                record_error("on_end of another processor", error)
