"""What the hot path asks of the process: one object, read by slots.

Whoever opens and ends a session sets it (`session`, `runtime`, `profiler`, and `forks` in a child);
nothing here is ever locked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry.context import _RUNTIME_CONTEXT
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.propagation import _SPAN_KEY

from .. import semconv as sc
from .._version import SDK_VERSION

if TYPE_CHECKING:
    from .scope import Scope
    from .traces import Segments

SPAN_KEY = _SPAN_KEY
"""Under which OpenTelemetry's context holds the current span."""
SCOPE_KEY = "cirron-otel-scope"
"""Under which it holds the innermost open scope, whatever span is current inside."""

SEEN = "_cirron_otel_scope"
"""The attribute that a recorded foreign span gets when it starts: its `enclosing.Enclosing`."""

CONTEXT = _RUNTIME_CONTEXT._current_context  # type: ignore[attr-defined]
"""The context variable itself: attach and detach cost 0.6 µs where set and reset cost 0.1."""

INSTRUMENTATION_SCOPE = InstrumentationScope(sc.SCOPE_NAME, SDK_VERSION)


class State:
    """The process as the hot path sees it."""

    __slots__ = ("fetched", "observe_end", "observe_start", "recording", "resource", "segments",
                 "session", "special")  # fmt: skip

    session: Scope
    """The session that is open; a stand-in without identity where none is."""
    segments: Segments | None

    def __init__(self) -> None:
        self.recording = True
        """Whether scopes and marks are recorded at all."""
        self.special = False
        """Whether somebody wants to be told of every start and end."""
        self.fetched = False
        """Whether an instrumentation records what loops fetch."""
        self.observe_start: Callable[[Any, Any], None] = _ignore
        self.observe_end: Callable[[Any, Any], None] = _ignore
        self.segments = None
        self.resource: Resource | None = None


def _ignore(_scope: Any, _other: Any) -> None:
    pass


state = State()
