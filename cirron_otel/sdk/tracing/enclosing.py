"""Recorded spans of other libraries, as parents of the scopes and phases that run in them."""

from __future__ import annotations

import threading
from typing import Any

from opentelemetry.trace import SpanContext

from .clock import ANCHOR, now
from .otel_span import RecordedScope
from .state import SCOPE_KEY, SEEN, SPAN_KEY, state
from .traces import Trace


class EnclosingSpan(RecordedScope):
    """A recorded span of another library, as an element of a scope's chain of parents.

    It has the span's id and trace, so the record of a child refers to the span's own record. Its
    depth is that of the scope in which the span began, and it has no name, because rules that
    depend on depth or name apply only to scopes.
    """

    __slots__ = ("has_phase", "is_recorded", "span")

    _folded = _is_detailed = _rest = None

    def __init__(self, span: Any, parent: Any) -> None:
        """`parent` is the scope or span in which `span` began."""
        context = span.get_span_context()
        self.span = span
        self.has_phase = False
        """Whether a phase ran in the span."""
        self.is_recorded = False
        """Whether a batch of an earlier flush contains the span, or it was dropped and counted."""
        self._above = parent
        self._depth = parent._depth
        self._name, self._index, self._attrs = "", None, None
        self._id = context.span_id
        self._trace = _trace_of(context, parent._trace)
        began = getattr(span, "start_time", None)
        self._start = began - ANCHOR if began else now()
        self._thread = threading.get_ident()
        self._extras = self._token = None

    @property
    def scope(self) -> Any:
        """The innermost scope around the span."""
        parent: Any = self._above
        while type(parent) is EnclosingSpan:
            parent = parent._above
        return parent

    @property
    def _inside(self) -> Any:  # the span and everything in it count as one interval
        parent: Any = self._above
        return parent._inside

    @property
    def _end(self) -> int:  # type: ignore[override]
        return self._above._end

    @property
    def _overhead(self) -> int:
        return self._above._overhead

    @_overhead.setter
    def _overhead(self, value: int) -> None:
        self._above._overhead = value

    def note_phase(self) -> None:
        """Record that a phase ran in this span, and therefore in the spans around it."""
        span: Any = self
        while type(span) is EnclosingSpan:
            span.has_phase = True
            span = span._above

    def reparent(self, parent: Any) -> None:
        """Change the parent, because the parent in which the span began has ended."""
        self._above, self._depth = parent, parent._depth

    def get_span_context(self) -> SpanContext:
        """Return the context of the span."""
        context: SpanContext = self.span.get_span_context()
        return context

    def is_recording(self) -> bool:
        """Return whether the span is open."""
        return bool(self.span.is_recording())


def _trace_of(context: SpanContext, parent_trace: Trace) -> Trace:
    trace_id = context.trace_id.to_bytes(16, "big")
    if trace_id == parent_trace.trace_id:
        return parent_trace
    return Trace(trace_id, int(context.trace_flags), context.trace_state, is_apart=True)


def enclosing_of(span: Any) -> EnclosingSpan | None:
    """Return the EnclosingSpan that represents `span`; None if the span is not recorded."""
    enclosing = getattr(span, SEEN, None)
    return enclosing if type(enclosing) is EnclosingSpan else None


def innermost(context: Any) -> Any:
    """Return the parent of a span that begins in `context`: a scope, or a recorded span in it."""
    scope = context.get(SCOPE_KEY) or state.session
    span = context.get(SPAN_KEY)
    if span is None or span is scope:
        return scope
    if isinstance(span, RecordedScope):
        return span if span._id and span._start else scope
    return enclosing_of(span) or scope
