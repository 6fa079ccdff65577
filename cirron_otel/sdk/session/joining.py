"""Join other traces: choose the parent or link of a session, and inject its context.

The sources, in order: an explicit parent or link; the current span; and TRACEPARENT, TRACESTATE,
and BAGGAGE from the environment (OpenTelemetry's specification, "Environment Variables as Context
Propagation Carriers").
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

from opentelemetry import propagate, trace
from opentelemetry.context.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, Span, SpanContext

from ..tracing.state import CONTEXT, SPAN_KEY, state
from .errors import record_error

PARENT, LINK, NONE = "parent", "link", "none"
_CARRIED = ("TRACEPARENT", "TRACESTATE", "BAGGAGE")


@dataclass(slots=True)
class Joined:
    """The parent and links of a session in OpenTelemetry's tree."""

    parent: SpanContext | None = None
    links: list[Link] = field(default_factory=list)
    context: Context = field(default_factory=Context)
    """The context from the environment, including its baggage; empty if it was not used."""


def join(
    how: str,
    environ: Mapping[str, str],
    parent: object = None,
    link: object = None,
    *,
    environment_first: bool = False,
) -> Joined:
    """Find the trace to join. `how` is parent, link, or none: how to use a surrounding span.

    `parent` and `link` may be a Span, a SpanContext, a Context, or a carrier (a mapping with
    `traceparent`, or the text of a `traceparent`). With `environment_first`, the context from the
    environment takes precedence over the current span, and is joined even if there is a `link`.
    """
    joined = Joined()
    if link is not None:
        # A SpanContext is also a tuple.
        several = isinstance(link, (list, tuple)) and not isinstance(link, SpanContext)
        for one in cast("list[object]", link) if several else [link]:
            context = _context_of(one)
            if context is not None:
                joined.links.append(Link(context))
    if parent is not None:
        joined.parent = _context_of(parent)
        return joined
    is_linked = bool(joined.links)
    if how == NONE or (is_linked and not environment_first):
        return joined
    surrounding = INVALID_SPAN_CONTEXT if is_linked else trace.get_current_span().get_span_context()
    if environment_first or not surrounding.is_valid:
        joined.context = from_environment(environ)
        span_context = trace.get_current_span(joined.context).get_span_context()
        surrounding = span_context if span_context.is_valid else surrounding
    if surrounding.is_valid and how == LINK:
        joined.links.append(Link(surrounding))
    elif surrounding.is_valid:
        joined.parent = surrounding
    return joined


def from_environment(environ: Mapping[str, str]) -> Context:
    """Return the context that the process was started with."""
    carrier = {name.lower(): environ[name] for name in _CARRIED if environ.get(name)}
    if not carrier:
        return Context()
    try:
        return propagate.extract(carrier, Context())
    except Exception as error:
        record_error("propagation", error)
        return Context()


def _context_of(given: object) -> SpanContext | None:
    """Return the span context of `given`; None, with an error recorded, if it has none."""
    context: Any = given
    if isinstance(context, str):
        context = {"traceparent": context}
    if isinstance(context, Mapping) and SPAN_KEY not in context:
        lowered = {str(key).lower(): value for key, value in context.items()}
        context = propagate.extract(lowered, Context())
    if isinstance(context, Context):
        context = trace.get_current_span(context)
    if isinstance(context, Span):
        context = context.get_span_context()
    if isinstance(context, SpanContext) and context.is_valid:
        return context
    record_error(
        "join", f"{type(given).__name__}: expected a Span, SpanContext, Context or carrier"
    )
    return None


def inject(
    carrier: MutableMapping[str, str] | None = None, *, environ: bool = False
) -> MutableMapping[str, str]:
    """Write the current scope's context into `carrier` (by default a new dict) and return it.

    `environ=True` writes upper-case names (TRACEPARENT), which a child process reads from its
    environment. The propagators are those of OTEL_PROPAGATORS.
    """
    carrier = {} if carrier is None else carrier
    try:
        context = CONTEXT.get()
        if context.get(SPAN_KEY) is None and state.session._id:
            context = Context({**context, SPAN_KEY: state.session})
        fields: dict[str, str] = {}
        propagate.inject(fields, context)
        for key, value in fields.items():
            carrier[key.upper() if environ else key] = value
    except Exception as error:
        record_error("propagation", error)
    return carrier
