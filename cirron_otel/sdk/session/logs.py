"""Add the current trace and span to log records.

The names are those of opentelemetry-instrumentation-logging: `otelTraceID` and `otelSpanID` (hex,
`0` if there is none), `otelTraceSampled`, `otelServiceName`. A format string may use them:
`%(asctime)s %(message)s [%(otelTraceID)s]`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from opentelemetry.trace import Span

from ..tracing.otel_span import RecordedScope
from ..tracing.state import CONTEXT, SPAN_KEY, state
from ..tracing.traces import SAMPLED
from .errors import record_error

_NONE = "0"


class _Factory:
    """A log record factory that extends the previous one."""

    def __init__(self, before: Callable[..., logging.LogRecord]) -> None:
        self.before = before

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.before(*args, **kwargs)
        try:
            _add(record)
        except Exception as error:
            record_error("log correlation", error)
        return record


def correlate() -> None:
    """Add the current trace and span to every log record of the process from now on."""
    before = logging.getLogRecordFactory()
    if not isinstance(before, _Factory):
        logging.setLogRecordFactory(_Factory(before))


def restore() -> None:
    """Restore the previous log record factory, unless another factory has replaced ours.

    A format string that uses the attributes needs defaults from then on:
    `logging.Formatter(..., defaults={"otelTraceID": "0"})`.
    """
    ours = logging.getLogRecordFactory()
    if isinstance(ours, _Factory):
        logging.setLogRecordFactory(ours.before)


def _add(record: logging.LogRecord) -> None:
    record.otelTraceID = record.otelSpanID = _NONE
    record.otelTraceSampled, record.otelServiceName = False, ""
    record.otelTraceID, record.otelSpanID, record.otelTraceSampled = _where()
    if state.resource is not None:
        record.otelServiceName = state.resource.attributes.get("service.name", "")


def _where() -> tuple[str, str, bool]:
    """Return trace id, span id, and the sampled flag of the current span or the session."""
    span: Any = CONTEXT.get().get(SPAN_KEY) or state.session
    if isinstance(span, RecordedScope):
        # Do not request the span context: that counts as a reference to the scope.
        if not span._id:
            return _NONE, _NONE, False
        trace = span._trace
        return trace.trace_id.hex(), f"{span._id:016x}", trace.is_sampled
    if isinstance(span, Span):
        context = span.get_span_context()
        if context.is_valid:
            sampled = bool(int(context.trace_flags) & SAMPLED)
            return f"{context.trace_id:032x}", f"{context.span_id:016x}", sampled
    return _NONE, _NONE, False
