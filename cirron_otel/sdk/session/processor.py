"""`CirronSpanProcessor`: Cirron's spool for any TracerProvider."""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span

from ...core.config.resolve import resolve
from ..tracing.foreign_spans import ForeignSpans
from ..tracing.span_processor import ForeignSpanProcessor
from .errors import record_error
from .handle import Profiler, active
from .opening import open_profiler
from .starting import Joining


class CirronSpanProcessor(ForeignSpanProcessor):
    """Cirron's spool for any TracerProvider: `provider.add_span_processor(CirronSpanProcessor())`.

    It opens the session of the process if none is open. Every span of the provider is written to
    the spool, as a child of the scope it ran in. The options are those of `profile()`. Without
    `exporters=`, it exports nothing: the provider's exporters see scopes like any other span.
    """

    def __init__(self, **options: Any) -> None:
        """Open the session. Raises nothing."""
        super().__init__(ForeignSpans())
        options.setdefault("exporters", "none")
        parent, link = options.pop("parent", None), options.pop("link", None)
        self._profiler: Profiler | None = None
        with active.lock:
            running = active.profiler
            if running is not None:
                # A profiler that is off means that nothing must be recorded.
                self.is_on = running.runtime is not None
                if running.runtime is not None:
                    self.foreign = running.runtime.link.processor.foreign
                return
            try:
                resolved = resolve(options)
                joining = Joining(parent, link, None, self)
                self._profiler = open_profiler(resolved, joining)
                active.profiler = self._profiler
            except Exception as error:
                record_error("profile", error)
            # Without a session, no flush thread would remove the spans that it retains.
            self.is_on = self._profiler is not None and self._profiler.enabled

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Record that a span begins."""
        super().on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Record that a span has ended."""
        super().on_end(span)

    def shutdown(self) -> None:
        """Close the session that this processor opened."""
        if self._profiler is not None:
            self._profiler.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Seal all records made so far; return True also if no session is open.

        If the result is False, a provider does not flush the processors after this one.
        """
        try:
            profiler = active.profiler
            if profiler is None or not profiler.enabled:
                return True
            return profiler.flush(timeout_millis / 1000)
        except Exception as error:
            record_error("flush", error)
            return False
