"""The OpenTelemetry configurator `cirron`, with which `opentelemetry-instrument` sets up tracing.

Spans are written to Cirron's spool and sent from there over OTLP, with the same options as with
`profile()`. The session opens with the first span, scope, or phase, because
`opentelemetry-instrument` affects every Python child process. Exporters other than OTLP
(OTEL_TRACES_EXPORTER=console), metrics, and logs are set up as by OpenTelemetry's configurator.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.util._decorator import _agnosticcontextmanager

from ...core.config.exporters import TRACES_EXPORTER, names_otlp
from ..tracing import buffers as buf
from ..tracing.clock import now
from .errors import record_error
from .handle import active
from .provider import RandomIds, RecordAll
from .waiting import wait_for_session

_CONFIG_FILE = "OTEL_CONFIG_FILE"
_DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"


class CirronConfigurator(_OTelSDKConfigurator):
    """The entry point. `configure()` sets the global providers; Cirron's part never raises."""

    def _configure(self, **kwargs: Any) -> None:
        begun = now()
        if os.environ.get(_CONFIG_FILE):
            # The file is the complete configuration; the session uses the provider it defines.
            super()._configure(**kwargs)  # type: ignore[no-untyped-call]
            wait_for_session(begun, hooks=_are_hooks_wanted())
            return
        kwargs.setdefault("id_generator", RandomIds())
        with _without_otlp():
            super()._configure(**kwargs)  # type: ignore[no-untyped-call]
        provider = trace.get_tracer_provider()
        try:
            if not isinstance(provider, TracerProvider):
                return
            if wait_for_session(begun, hooks=_are_hooks_wanted()):
                _adopt(provider)
        except Exception as error:
            record_error("configurator", error)


def _are_hooks_wanted() -> bool:
    """Return whether the instrumentor `cirron`, which installs the hooks, is enabled."""
    named = os.environ.get(_DISABLED, "").split(",")
    return not {"cirron", "*"} & {name.strip() for name in named}


@contextmanager
def _without_otlp() -> Iterator[None]:
    """Remove OTLP from the exporters: OTLP is sent from the spool, which loses nothing."""
    before = os.environ.get(TRACES_EXPORTER)
    left = [name for name in (before or "").split(",") if name.strip() and not names_otlp(name)]
    os.environ[TRACES_EXPORTER] = ",".join(left) or "none"
    try:
        yield
    finally:
        if before is None:
            del os.environ[TRACES_EXPORTER]
        else:
            os.environ[TRACES_EXPORTER] = before


def _adopt(provider: Any) -> None:
    """Make the provider behave like one that the SDK creates.

    Spans that are not sampled are recorded, and the session is open when the first span begins.
    """
    provider._is_cirrons = True
    provider.sampler = RecordAll(provider.sampler)
    make = provider.get_tracer
    provider.get_tracer = lambda *args, **named: OpeningTracer(make(*args, **named))


class OpeningTracer(trace.Tracer):
    """A tracer that opens the session before its first span looks up its parent."""

    def __init__(self, tracer: trace.Tracer) -> None:
        """`tracer` creates the spans."""
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute from the wrapped tracer."""
        return getattr(self._tracer, name)

    def start_span(self, *args: Any, **named: Any) -> Any:
        """Start a span; see `opentelemetry.trace.Tracer`."""
        _open()
        return self._tracer.start_span(*args, **named)

    @_agnosticcontextmanager
    def start_as_current_span(self, *args: Any, **named: Any) -> Iterator[Any]:
        """Start a span and make it current; as a decorator, start one on each call."""
        _open()
        with self._tracer.start_as_current_span(*args, **named) as span:
            yield span


def _open() -> None:
    waiting = active.waiting
    if waiting is not None:
        waiting.open()
    elif active.profiler is None:
        buf.hooks.first()  # opens the session of a forked child; otherwise it does nothing
