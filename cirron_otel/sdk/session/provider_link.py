"""A session's connection to its TracerProvider, and to that provider's other processors.

`profile()` makes the SDK's provider global if the program has none. OpenTelemetry allows a global
provider to be set only once, so the program's own provider would then be rejected. `publish` makes
the SDK's provider global, but still allows the program to set its own provider later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.util._once import Once

from ..tracing import costs
from ..tracing.detail_sampling import note_references
from ..tracing.enclosing import EnclosingSpan
from ..tracing.otel_span import RecordedScope
from ..tracing.scope import NO_SESSION, Scope
from ..tracing.span_processor import ForeignSpanProcessor, Observers, processor_of, processors_of
from ..tracing.state import CONTEXT, SCOPE_KEY, state
from ..tracing.step_places import StepPlaces, is_step
from ..tracing.trainings import NUMBERED, trainings
from .errors import record_error
from .joining import Joined
from .provider import applications_provider
from .resource import SessionResource
from .session import sampling


def _ignore(_: Any) -> None:
    pass


class _Listener:
    def __init__(self) -> None:
        self.replaced: Callable[[Any], None] = _ignore
        self.added: Callable[[Any], None] = _ignore

    def listen(self, replaced: Callable[[Any], None], added: Callable[[Any], None]) -> None:
        """Set the callbacks.

        `replaced` is called with a provider that the program sets in place of the SDK's, and
        `added` with each processor that the program adds to the session's provider.
        """
        self.replaced, self.added = replaced, added

    def rest(self) -> None:
        """Remove the callbacks."""
        self.replaced = self.added = _ignore


listener = _Listener()


class _OnceMore(Once):
    """Allows the global provider to be set a second time, and then calls `listener.replaced`."""

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
    """Call `listener.added` with each processor that the program adds to `provider` from now on."""
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
    """Report the start of the open scopes around the caller to processors."""
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
    """Passes spans from tracers of the SDK's provider to the program's processors."""

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


class ProviderLink:
    """Connects a session to its provider, and reports scopes to the provider's other processors."""

    def __init__(
        self,
        provider: TracerProvider | None,
        processor: ForeignSpanProcessor,
        resource: SessionResource,
        joined: Joined,
        session: Scope,
        *,
        is_own: bool,
        has_costs: bool,
        is_thinned: bool,
    ) -> None:
        """Store the arguments without connecting anything yet.

        `is_own` means that the SDK created the provider, `has_costs` that scopes measure CPU time
        or memory, and `is_thinned` that detail sampling is on.
        """
        self.provider = provider
        """The session's provider.

        If the application adds the processor itself, this may be None until the application's
        provider calls the processor for the first time.
        """
        self.processor = processor
        self.observers = Observers(provider, processor)
        self.on_application_exporters: Callable[[], None] | None = None
        """Called once the application's provider has other processors, which receive every scope.
        """
        self._resource, self._joined, self._session = resource, joined, session
        self._is_own, self._has_costs, self._is_thinned = is_own, has_costs, is_thinned
        self._is_over = False
        self._places = StepPlaces()

    def connect(self, *, is_added: bool) -> None:
        """Add the processor to the provider and observe scopes from now on.

        With `is_added`, the application adds the processor itself.
        """
        provider = self.provider
        state.observe_start, state.observe_end = self.on_start, self.on_end
        if provider is not None and not is_added and processor_of(provider) is not self.processor:
            provider.add_span_processor(self.processor)
        if provider and self._is_own:
            publish(provider)
        elif provider:
            watch(provider)
        listener.listen(self.take_over, self.processor_added)
        self.observe()
        self.observers.start(self._session, None)
        self.processor.met = self.adopt if is_added else None

    def take_over(self, provider: Any) -> None:
        """Switch the session to a provider that the program has set."""
        previous = self.provider
        if self._is_over or provider is previous or not isinstance(provider, TracerProvider):
            return
        if processor_of(provider) is None:
            provider.add_span_processor(self.processor)
        if previous is not None and self._is_own:
            self.observers.earlier += processors_of(previous)
            previous.add_span_processor(Forwarding(provider))
        self.provider, self._is_own = provider, False
        watch(provider)
        self.adopt(provider._active_span_processor, provider.resource)
        show_open(self.observers.others())

    def processor_added(self, processor: SpanProcessor) -> None:
        """Report scopes to a processor that the program has added to the session's provider."""
        if processor is not self.processor and not isinstance(processor, Forwarding):
            self.observe()
            show_open((processor,))

    def observe(self) -> None:
        """Report scopes to other processors from now on, if there are any."""
        has_others = bool(self.observers.others())
        state.special = self._has_costs or self.provider is None or has_others
        if has_others and not self._is_own and self.on_application_exporters is not None:
            notify, self.on_application_exporters = self.on_application_exporters, None
            notify()

    def adopt(self, processors: Any, resource: Resource, sampler: Any = None) -> None:
        """Use the processors, the resource, and the sampler of the session's new provider."""
        self.observers.processors = processors
        self._resource.merge(resource)
        if sampler is not None:
            session = self._session
            session._trace.flags = sampling(sampler, session._trace.trace_id, self._joined)[0]
            session.more.context = None
        self.observe()

    def on_start(self, scope: Any, context: Any) -> None:
        """Begin to measure a scope's costs, and report its start to the other processors."""
        if self.provider is None:
            provider = applications_provider()
            if provider is not None and self.observers.are_of(provider):
                self.provider = provider
                self.adopt(provider._active_span_processor, provider.resource, provider.sampler)
        costs.begin(scope)
        self.observers.start(scope, context)

    def on_end(self, scope: Any, end: int) -> None:
        """Record a scope's end (monotonic ns) and costs, and report it to the other processors."""
        costs.end(scope)
        if self._is_thinned:
            note_references(scope)
        if not scope._end:
            scope._end = end
        index = scope._index
        if type(index) is int and is_step(scope):
            for name, value in self._places.place(scope, index).items():
                scope.attrs.setdefault(name, value)
        if trainings.is_used and type(scope._name) is str and scope._name in NUMBERED:
            for name, value in trainings.attribute_of(scope).items():
                scope.attrs.setdefault(name, value)
        self.observers.end(scope)

    def end(self) -> None:
        """Stop accepting foreign spans and other providers, because the session is closing."""
        self._is_over = True
        self.processor.is_on = False

    def disconnect(self) -> None:
        """Stop observing scopes and providers."""
        state.special = False
        listener.rest()
        unwatch(self.provider)
