"""The process-wide state that the hot path reads: one object with slots, without a lock.

Sessions update it when they open and end; snapshots and instrumentations set their hooks in it.
`OpenScope` is the part of a scope that the modules below `scope` use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.context import _RUNTIME_CONTEXT
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.propagation import _SPAN_KEY

from ... import semconv as sc
from ..._version import SDK_VERSION

if TYPE_CHECKING:
    from .traces import Segments, Trace

SPAN_KEY = _SPAN_KEY
"""Key of the current span in OpenTelemetry's context."""
SCOPE_KEY = "cirron-otel-scope"
"""Key of the innermost open scope in the context, regardless of the current span inside it."""

SEEN = "_cirron_otel_scope"
"""The attribute of a recorded foreign span that contains its `enclosing.EnclosingSpan`."""

CONTEXT = _RUNTIME_CONTEXT._current_context  # type: ignore[attr-defined]
"""The context variable itself: attach and detach take 0.6 µs, set and reset 0.1 µs."""

INSTRUMENTATION_SCOPE = InstrumentationScope(sc.SCOPE_NAME, SDK_VERSION)


class OpenScope(Protocol):
    """The interface that buffers, decorators, and segments need; `scope.Scope` implements it."""

    _id: int
    _depth: int
    _start: int
    _end: int
    _overhead: int
    _trace: Trace
    _inside: Any

    @property
    def id(self) -> str | None:
        """The Cirron id, 32 hex digits; None if it is not recorded."""

    @property
    def end_ns(self) -> int:
        """End, nanoseconds since the Unix epoch; 0 while it is open."""

    def drop(self) -> None:
        """Discard the scope because the buffers are full."""

    def suspend(self) -> None:
        """Stop being the current span, but stay open."""

    def resume(self) -> None:
        """Become the current span again."""

    def __enter__(self) -> Any:
        """Open the scope."""

    def __exit__(self, *error: Any) -> None:
        """Close the scope."""


class State:
    """The state of the process that the hot path reads."""

    __slots__ = ("digests", "epoch_ended", "failed", "fetched", "observe_end", "observe_start",
                 "recording", "resource", "segments", "session", "special")  # fmt: skip

    session: Any
    """The open session's scope, or the placeholder `scope.NO_SESSION` if no session is open."""
    segments: Segments | None

    def __init__(self) -> None:
        self.recording = True
        """Whether scopes and marks are recorded at all."""
        self.special = False
        """Whether `observe_start` and `observe_end` are called for every scope."""
        self.fetched = False
        """Whether an instrumentation records the fetches of loops."""
        self.observe_start: Callable[[Any, Any], None] = _ignore
        self.observe_end: Callable[[Any, Any], None] = _ignore
        self.epoch_ended: Callable[[Any], None] = ignore_epoch
        """Called on the training thread when an epoch's scope has ended or ends now, before the
        weights change. It may be called more than once for a scope, and raises nothing."""
        self.failed: Callable[[Any, Any, int], None] = ignore_failure
        """Called with a scope, the exception that leaves it, and the time (monotonic ns; 0: now),
        once the status is set. It raises nothing, and keeps no reference to the exception."""
        self.digests: Any = None
        """Digests the tensors of steps (`snapshots.digests.Digests`); None if that is off."""
        self.segments = None
        self.resource: Resource | None = None

    def __reduce__(self) -> str:
        """A hooked class that is pickled by value refers to the state of the process it gets to."""
        return "state"


def _ignore(_scope: Any, _other: Any) -> None:
    pass


def ignore_failure(_scope: Any, _error: Any, _at: int) -> None:
    """Do nothing: no session records out-of-memory errors."""


def ignore_epoch(_scope: Any) -> None:
    """Do nothing: no session takes snapshots."""


state = State()
