"""Spans of other libraries in this process, recorded along with the scopes they ran in."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Span

from ..flush.json_attributes import plain_attributes, text_of
from ..flush.rows import SpanRow
from ..flush.span_rows import event_record, flags_of, link_record, otel_fields, recorded_above
from .buffers import limits, local
from .clock import ANCHOR, wall_now
from .enclosing import EnclosingSpan, innermost
from .otel_span import RecordedScope
from .state import CONTEXT, SEEN, state
from .traces import SAMPLED

_TAKEN = "_cirron_otel_taken"
"""Marks an ended span as recorded, because a provider may have two of Cirron's processors."""


@dataclass(slots=True)
class OpenForeignSpan:
    """A foreign span that is open."""

    span: Any
    seen: EnclosingSpan

    @property
    def above(self) -> Any:
        """The parent: the innermost scope or recorded span around it, or the session."""
        return self.seen._above


Ended = tuple[ReadableSpan, OpenForeignSpan]


class ForeignSpans:
    """The open foreign spans, by trace and span id, and the number of dropped ones."""

    def __init__(self) -> None:
        self.open: dict[tuple[int, int], OpenForeignSpan] = {}
        self.dropped = 0

    def start(self, span: Span, context: Any) -> None:
        """Record that a span begins in `context` (None: the current context)."""
        if isinstance(span, RecordedScope):
            return
        if context is None:
            context = CONTEXT.get()
        span_context = span.get_span_context()
        if len(self.open) >= limits.scopes:
            self.dropped += 1
            return
        parent = innermost(context)
        enclosing = EnclosingSpan(span, parent)
        begun = OpenForeignSpan(span, enclosing)
        setattr(span, SEEN, enclosing)
        inside = None if type(parent) is EnclosingSpan else parent._inside
        if inside is not None:
            inside.begin(enclosing)
        self.open[span_context.trace_id, span_context.span_id] = begun

    def end(self, span: ReadableSpan) -> None:
        """Put a span that has ended into the buffer of this thread."""
        span_context = span.get_span_context()
        if isinstance(span, RecordedScope) or span_context is None or hasattr(span, _TAKEN):
            return
        with contextlib.suppress(AttributeError):
            setattr(span, _TAKEN, True)
        key = span_context.trace_id, span_context.span_id
        begun = self.open.get(key)
        if begun is None:
            if state.session._start:
                begun = OpenForeignSpan(span, EnclosingSpan(span, state.session))
            else:
                return
        inside = begun.above._inside
        if inside is not None:
            inside.open.pop(begun.seen, None)
        if inside is not None and span.start_time and span.end_time:
            inside.append((span.start_time - ANCHOR, span.end_time - ANCHOR))
        buffers = local.b
        if begun.seen.is_recorded:
            pass  # the last flush of the session has recorded it meanwhile
        elif len(buffers.foreign) >= limits.scopes:
            self.dropped += 1
            begun.seen.is_recorded = True
        else:
            buffers.foreign.append((span, begun))
        # Last: a flush, which copies `open` before it takes the ended spans, always finds the span.
        self.open.pop(key, None)


def foreign_row(
    span: Any, begun: OpenForeignSpan, pid: int, rank: int | None, default_trace: Any
) -> SpanRow:
    """Return the record of a foreign span; `end_ns` is 0 while the span is open."""
    context = span.get_span_context()
    trace_id = f"{context.trace_id:032x}"
    parent = begun.above
    parent_id = (parent if parent._id else recorded_above(parent)).id
    return SpanRow(
        f"{context.span_id:016x}{trace_id[16:]}",
        text_of(span.name),
        parent_id,
        None,
        span.start_time or wall_now(),
        span.end_time or 0,
        None,
        None,
        None,
        begun.seen._thread,
        pid,
        rank,
        plain_attributes(span.attributes),
        [],
        _otel(span, context, parent_id, default_trace) or UNSET,
    )


def _otel(span: Any, context: Any, parent_id: str | None, default_trace: Any) -> dict[str, Any]:
    """Return the span's `otel` object, with the keys in the decoder's order."""
    otel = otel_fields(span.kind, span.status)
    is_sampled = bool(int(context.trace_flags) & SAMPLED)
    if is_sampled != default_trace.is_sampled:
        otel["flags"] = flags_of(is_sampled)
    if context.trace_state:
        otel["trace_state"] = context.trace_state.to_header()
    for field in ("attributes", "events", "links"):
        if dropped := getattr(span, f"dropped_{field}", 0):
            otel[f"dropped_{field}_count"] = dropped
    if span.links:
        otel["links"] = [link_record(link) for link in span.links]
    trace_id = f"{context.trace_id:032x}"
    if trace_id != default_trace.trace_id.hex():
        otel["trace_id"] = trace_id
    wire = f"{span.parent.span_id:016x}" if span.parent is not None else ""
    if wire != (parent_id or "")[:16]:
        otel["parent_span_id"] = wire
    if span.events:
        otel["events"] = [event_record(event) for event in span.events]
    scope = span.instrumentation_scope
    if scope is not None and scope.name:
        fields = {"name": scope.name, "version": scope.version, "schema_url": scope.schema_url}
        otel["scope"] = {key: value for key, value in fields.items() if value}
        if scope.attributes:
            otel["scope"]["attributes"] = plain_attributes(scope.attributes)
    return otel
