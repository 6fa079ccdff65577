"""OpenTelemetry's instrumentor `cirron`: the hooks into PyTorch, for `opentelemetry-instrument`.

Needs opentelemetry-instrumentation, which whoever asks for an instrumentor has.
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
    """Hooks torch when it is imported; the session opens with the first thing recorded.

    `instrument(tracer_provider=…)` names the provider that the session works in: by default the
    global one, as with `profile()`.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: torch is hooked where it is imported, in any version."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        provider = kwargs.get("tracer_provider")
        wait_for_session(now(), provider if isinstance(provider, TracerProvider) else None)

    def _uninstrument(self, **_: Any) -> None:
        stop_waiting()
        shutdown()
