"""The OpenTelemetry instrumentor `cirron`: the hooks, for `opentelemetry-instrument`.

It needs opentelemetry-instrumentation, which is always installed when an instrumentor is loaded.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]
from opentelemetry.sdk.trace import TracerProvider

from ..tracing.clock import now
from .cirron import shutdown
from .waiting import stop_waiting, wait_for_session


class CirronInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Hooks frameworks when they are imported; the session opens with the first record.

    `instrument(tracer_provider=…)` sets the provider that the session works in; by default it is
    the global one, as with `profile()`.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependencies: any framework is hooked when it is imported."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        provider = kwargs.get("tracer_provider")
        wait_for_session(now(), provider if isinstance(provider, TracerProvider) else None)

    def _uninstrument(self, **_: Any) -> None:
        stop_waiting()
        shutdown()
