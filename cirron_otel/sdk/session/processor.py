"""`CirronSpanProcessor`: Cirron's spool for anybody's TracerProvider."""

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

    It opens the session of the process if none is open; every span of the provider reaches the
    spool, as a child of the scope it ran in. The options are those of `profile()`. It exports
    nothing by itself: the provider's own exporters are handed scopes like any span, unless
    `exporters=` names some.
    """

    def __init__(self, **options: Any) -> None:
        """Open the session; nothing is raised."""
        super().__init__(ForeignSpans())
        options.setdefault("exporters", "none")
        parent, link = options.pop("parent", None), options.pop("link", None)
        self._profiler: Profiler | None = None
        with active.lock:
            running = active.profiler
            if running is not None:
                # One that is off says that nothing is to be recorded.
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
            # Nobody would take what it keeps where there is no session.
            self.is_on = self._profiler is not None and self._profiler.enabled

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span begins."""
        super().on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended."""
        super().on_end(span)

    def shutdown(self) -> None:
        """The provider ends: so does the session that this opened."""
        if self._profiler is not None:
            self._profiler.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Seal what was recorded until now; True as well where no session is open.

        A provider that hears False does not flush the processors behind this one.
        """
        try:
            profiler = active.profiler
            if profiler is None or not profiler.enabled:
                return True
            return profiler.flush(timeout_millis / 1000)
        except Exception as error:
            record_error("flush", error)
            return False
