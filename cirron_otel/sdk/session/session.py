"""The session: the root scope of a process, and the trace that contains it."""

from __future__ import annotations

import threading
from os import urandom
from typing import Any

from opentelemetry.context.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanKind,
    TraceState,
    get_current_span,
    set_span_in_context,
)

from ... import semconv as sc
from ..tracing.clock import now
from ..tracing.scope import NO_SESSION, Scope
from ..tracing.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from ..tracing.traces import SAMPLED, Segments, Trace
from .errors import record_error
from .joining import Joined


def open_session(joined: Joined, sampler: Sampler | None) -> Scope:
    """Begin a session. Its id is 8 random bytes and the lower half of its trace's id."""
    half = _nonzero()
    if joined.parent is not None:
        trace_id = joined.parent.trace_id.to_bytes(16, "big")
    else:
        trace_id = half + urandom(8)
    trace = Trace(trace_id, *sampling(sampler, trace_id, joined))
    session = Scope(sc.SESSION)
    session._above = NO_SESSION
    session._depth = 0
    session._trace = trace
    session._id = int.from_bytes(half, "big")
    session._thread = threading.get_ident()
    if joined.parent is not None:
        session.more.is_rooted = True
        session.more.otel_parent = joined.parent
    if joined.links:
        session.more.links = joined.links
    session._start = now()
    return session


def _nonzero() -> bytes:
    while True:
        half = urandom(8)
        if any(half):
            return half


def sampling(
    sampler: Sampler | None, trace_id: bytes, joined: Joined
) -> tuple[int, TraceState | None]:
    """Return the flags and trace state of the session's trace; sampling only affects export."""
    if sampler is None:
        return SAMPLED, None
    context = Context()
    if joined.parent is not None:
        context = set_span_in_context(NonRecordingSpan(joined.parent), context)
    try:
        result = sampler.should_sample(
            context, int.from_bytes(trace_id, "big"), sc.SESSION, SpanKind.INTERNAL, {},
            joined.links,
        )  # fmt: skip
    except Exception as error:
        record_error("sampler", error)
        return SAMPLED, None
    flags = SAMPLED if result.decision is Decision.RECORD_AND_SAMPLE else 0
    return flags, result.trace_state


class Entered:
    """Makes the session the current scope of the process, until `leave`."""

    def __init__(self, session: Scope, segments: Segments, joined: Joined) -> None:
        """Make the session the parent of every scope that has no other parent."""
        state.session, state.segments = session, segments
        context = {**CONTEXT.get(), **joined.context}
        self._session = session
        self._token: Any = CONTEXT.set(Context({**context, SPAN_KEY: session, SCOPE_KEY: session}))

    def leave(self) -> None:
        """Stop using the session as a parent."""
        if state.session is self._session:
            state.session, state.segments = NO_SESSION, None
        if get_current_span() is self._session:
            try:
                CONTEXT.reset(self._token)
            except (ValueError, RuntimeError):
                clear_scopes()


def clear_scopes() -> None:
    """Remove all scopes from the current context: they belong to a session that has ended."""
    context = CONTEXT.get()
    if SCOPE_KEY in context or isinstance(context.get(SPAN_KEY), Scope):
        others = {key: value for key, value in context.items() if key != SCOPE_KEY}
        if isinstance(others.get(SPAN_KEY), Scope):
            del others[SPAN_KEY]
        CONTEXT.set(Context(others))
