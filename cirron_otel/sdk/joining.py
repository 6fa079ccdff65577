"""Joining other traces: which parent or link a session gets, and handing its own context on.

In this order: an explicit parent or link, the span that is current, and TRACEPARENT, TRACESTATE
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

from .errors import record_error
from .state import CONTEXT, SPAN_KEY, state

PARENT, LINK, NONE = "parent", "link", "none"
_CARRIED = ("TRACEPARENT", "TRACESTATE", "BAGGAGE")


@dataclass(slots=True)
class Joined:
    """What a session hangs on in OpenTelemetry's tree."""

    parent: SpanContext | None = None
    links: list[Link] = field(default_factory=list)
    context: Context = field(default_factory=Context)
    """What came with it: baggage."""


def join(
    how: str,
    environ: Mapping[str, str],
    parent: object = None,
    link: object = None,
    *,
    environment_first: bool = False,
) -> Joined:
    """Find what to join. `how` is what becomes of a span found around: parent, link or none.

    `parent` and `link` may be a Span, a SpanContext, a Context or a carrier (a mapping that holds
    `traceparent`, or its text). `environment_first`: what the process was started with goes before
    the span that is current, and is joined where there is a `link`, too.
    """
    joined = Joined()
    if link is not None:
        # A SpanContext is a tuple, too.
        several = isinstance(link, (list, tuple)) and not isinstance(link, SpanContext)
        for one in cast("list[object]", link) if several else [link]:
            found = _context_of(one)
            if found is not None:
                joined.links.append(Link(found))
    if parent is not None:
        joined.parent = _context_of(parent)
        return joined
    is_linked = bool(joined.links)
    if how == NONE or (is_linked and not environment_first):
        return joined
    around = INVALID_SPAN_CONTEXT if is_linked else trace.get_current_span().get_span_context()
    if environment_first or not around.is_valid:
        joined.context = from_environment(environ)
        given = trace.get_current_span(joined.context).get_span_context()
        around = given if given.is_valid else around
    if around.is_valid and how == LINK:
        joined.links.append(Link(around))
    elif around.is_valid:
        joined.parent = around
    return joined


def from_environment(environ: Mapping[str, str]) -> Context:
    """The context that the process was started with."""
    carrier = {name.lower(): environ[name] for name in _CARRIED if environ.get(name)}
    if not carrier:
        return Context()
    try:
        return propagate.extract(carrier, Context())
    except Exception as error:
        record_error("propagation", error)
        return Context()


def _context_of(given: object) -> SpanContext | None:
    """The span context that `given` says; one that says none is reported and left out."""
    found: Any = given
    if isinstance(found, str):
        found = {"traceparent": found}
    if isinstance(found, Mapping) and SPAN_KEY not in found:
        lowered = {str(key).lower(): value for key, value in found.items()}
        found = propagate.extract(lowered, Context())
    if isinstance(found, Context):
        found = trace.get_current_span(found)
    if isinstance(found, Span):
        found = found.get_span_context()
    if isinstance(found, SpanContext) and found.is_valid:
        return found
    record_error(
        "join", f"{type(given).__name__}: expected a Span, SpanContext, Context or carrier"
    )
    return None


def inject(
    carrier: MutableMapping[str, str] | None = None, *, environ: bool = False
) -> MutableMapping[str, str]:
    """Write the current scope's context into `carrier` and return it; a new dict by default.

    `environ=True` writes upper-case names (TRACEPARENT), as a child process reads them from its
    environment. The propagators are OTEL_PROPAGATORS'.
    """
    carrier = {} if carrier is None else carrier
    try:
        context = CONTEXT.get()
        if context.get(SPAN_KEY) is None and state.session._id:
            context = Context({**context, SPAN_KEY: state.session})
        made: dict[str, str] = {}
        propagate.inject(made, context)
        for key, value in made.items():
            carrier[key.upper() if environ else key] = value
    except Exception as error:
        record_error("propagation", error)
    return carrier
