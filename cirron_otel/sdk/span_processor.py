"""CirronSpanProcessor: every span of the process reaches the spool, whoever made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from .errors import record_error
from .foreign import ForeignSpans


class ForeignSpanProcessor(SpanProcessor):
    """Hands foreign spans to the collector. Scopes come by the hot path, not through here."""

    def __init__(self, foreign: ForeignSpans) -> None:
        """`foreign` is where they are kept while they are open."""
        self.foreign = foreign
        self.is_on = True
        self.met: Callable[[Any, Resource], None] | None = None
        """Told of the provider's processors and resource, by its first span."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span begins."""
        if self.is_on:
            try:
                if self.met is not None:
                    met, self.met = self.met, None
                    met(getattr(span, "_span_processor", None), span.resource)
                self.foreign.start(span, parent_context)
            except Exception as error:
                record_error("on_start", error)

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended."""
        if self.is_on:
            try:
                self.foreign.end(span)
            except Exception as error:
                record_error("on_end", error)


def processors_of(provider: Any) -> tuple[SpanProcessor, ...]:
    """The processors of a provider, as they are now."""
    multi = getattr(provider, "_active_span_processor", None)
    return tuple(getattr(multi, "_span_processors", ()))


def processor_of(provider: Any) -> ForeignSpanProcessor | None:
    """Ours, where a session before has added it: a provider gives none back."""
    ours = (each for each in processors_of(provider) if type(each) is ForeignSpanProcessor)
    return next(ours, None)


class Observers:
    """The other processors of the provider: they are told of scopes like of any span."""

    def __init__(self, provider: Any, own: SpanProcessor) -> None:
        """`own` is ours, which needs no telling."""
        self.processors: Any = getattr(provider, "_active_span_processor", None)
        """The provider's, all of them; None while it is not known."""
        self.earlier: tuple[SpanProcessor, ...] = ()
        """Of a provider of ours that the program has replaced: those that it had added there."""
        self._own = own

    def are_of(self, provider: Any) -> bool:
        """Whether our own processor is one of the provider's."""
        multi = getattr(provider, "_active_span_processor", None)
        return self._own in getattr(multi, "_span_processors", ())

    def others(self) -> tuple[SpanProcessor, ...]:
        """The processors besides ours, as they are now."""
        found = self.earlier + getattr(self.processors, "_span_processors", ())
        return tuple(each for each in found if not isinstance(each, ForeignSpanProcessor))

    def start(self, span: Any, context: Any) -> None:
        """A scope begins."""
        for each in self.others():
            try:
                each.on_start(span, context)
            except Exception as error:
                record_error("on_start of another processor", error)

    def end(self, span: Any) -> None:
        """A scope has ended."""
        for each in self.others():
            try:
                each.on_end(span)
            except Exception as error:
                record_error("on_end of another processor", error)
