"""Move an open session to a TracerProvider that the program sets later.

`profile()` makes the SDK's provider global if the program has none. OpenTelemetry allows a global
provider to be set only once, so the program's own provider would then be rejected. `publish` makes
the SDK's provider global and still allows the program to set one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.util._once import Once

from ..tracing.enclosing import EnclosingSpan
from ..tracing.otel_span import RecordedScope
from ..tracing.scope import NO_SESSION
from ..tracing.span_processor import Observers
from ..tracing.state import CONTEXT, SCOPE_KEY, state
from .errors import record_error


def _ignore(_: Any) -> None:
    pass


class _Listener:
    def __init__(self) -> None:
        self.replaced: Callable[[Any], None] = _ignore
        self.added: Callable[[Any], None] = _ignore

    def listen(self, replaced: Callable[[Any], None], added: Callable[[Any], None]) -> None:
        """Set the callbacks: `replaced` for a provider that the program sets in place of the
        SDK's, and `added` for each processor that it adds to the provider of the session.
        """
        self.replaced, self.added = replaced, added

    def rest(self) -> None:
        """Remove the callbacks."""
        self.replaced = self.added = _ignore


listener = _Listener()


class _OnceMore(Once):
    """Allows the global provider to be set once more, and reports that."""

    def do_once(self, func: Callable[[], None]) -> bool:
        """Run `func` the first time; return whether it ran."""
        is_set = super().do_once(func)
        if is_set:
            try:
                listener.replaced(trace.get_tracer_provider())
            except Exception as error:
                record_error("provider", error)
        return is_set


def publish(provider: TracerProvider) -> None:
    """Make the SDK's provider global until the program sets its own."""
    if trace.get_tracer_provider() is provider:
        return
    trace.set_tracer_provider(provider)
    if trace.get_tracer_provider() is provider and hasattr(trace, "_TRACER_PROVIDER_SET_ONCE"):
        trace._TRACER_PROVIDER_SET_ONCE = _OnceMore()


def watch(provider: TracerProvider) -> None:
    """Report scopes immediately to processors that the program adds from now on."""
    processors: Any = provider._active_span_processor
    add = processors.add_span_processor
    if getattr(add, "is_watched", False):
        return

    def added(processor: SpanProcessor) -> None:
        add(processor)
        try:
            listener.added(processor)
        except Exception as error:
            record_error("provider", error)

    added.is_watched = True  # type: ignore[attr-defined]
    processors.add_span_processor = added


def unwatch(provider: TracerProvider | None) -> None:
    """Undo `watch`."""
    processors = getattr(provider, "_active_span_processor", None)
    if getattr(getattr(processors, "add_span_processor", None), "is_watched", False):
        del processors.add_span_processor  # type: ignore[union-attr]


def show_open(processors: tuple[SpanProcessor, ...]) -> None:
    """Report the open scopes around the caller to processors; their ends are reported later."""
    context = CONTEXT.get()
    scope: Any = context.get(SCOPE_KEY) or state.session
    open_scopes: list[Any] = []
    while scope is not NO_SESSION:
        if scope._id and not scope._end:
            open_scopes.append(scope)
        if scope is state.session:
            break
        scope = scope._above.scope if isinstance(scope._above, EnclosingSpan) else scope._above
    for each in reversed(open_scopes):
        for processor in processors:
            try:
                processor.on_start(each, context)
            except Exception as error:
                record_error("on_start of another processor", error)


class Forwarding(SpanProcessor):
    """Passes spans of tracers of the SDK's provider to the program's processors."""

    def __init__(self, provider: TracerProvider) -> None:
        """`provider` is the program's provider."""
        self._observers = Observers(provider, self)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Report the beginning of a span to the program's processors."""
        if not isinstance(span, RecordedScope):
            self._observers.start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Report the end of a span to the program's processors."""
        if not isinstance(span, RecordedScope):
            self._observers.end(span)
