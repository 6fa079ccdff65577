"""`Profiler`, the session of this process in the hands of its user."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from ...core.config.options import Config
from ..instrumentation.installing import Instrumentation
from ..tracing.scope import Scope
from . import failures
from .closing_line import show_closing_line
from .errors import record_error
from .exits import Exits
from .health import disabled_health, health_of
from .readback import Recent
from .run_identity import RunIdentity
from .runtime import Runtime

_TRACE_FLUSH_S = 5.0


class Profiler:
    """What `profile()` returns: the session of this process. It may be thrown away.

    `enabled` is False where profiling was turned off; then every method does nothing.
    """

    def __init__(self, runtime: Runtime | None, config: Config, cirron: Any = None) -> None:
        """Made by `profile()` alone."""
        self.runtime = runtime
        """What runs the session; None where there is none."""
        self.exits: Exits | None = None
        self.instrumentation: Instrumentation | None = None
        """The hooks into frameworks."""
        self.config = config
        self._cirron = cirron

    @property
    def cirron(self) -> Any:
        """The `Cirron` that opened the session."""
        return active.default() if self._cirron is None else self._cirron

    def __repr__(self) -> str:
        """The session and where its spool stands."""
        session = self.session
        state = "off" if session is None else "open" if self.enabled else "over"
        where = "" if session is None else f", session={session.id}, dir={self.config.output_dir}"
        return f"Profiler({state}{where})"

    @property
    def enabled(self) -> bool:
        """Whether a session is open."""
        return self.runtime is not None and not self.runtime.is_over

    @property
    def session(self) -> Scope | None:
        """The session's root scope."""
        return self.runtime.origin.session if self.runtime is not None else None

    @property
    def run(self) -> RunIdentity | None:
        """The run that the session belongs to: its id and name."""
        return self.runtime.run if self.runtime is not None else None

    @property
    def provider(self) -> TracerProvider | None:
        """The provider that the session works in."""
        return self.runtime.link.provider if self.runtime is not None else None

    @property
    def installed_hooks(self) -> list[str]:
        """The frameworks that are hooked."""
        return self.instrumentation.installed if self.instrumentation is not None else []

    @property
    def platform_context(self) -> dict[str, str]:
        """The ids that the platform gave this run: workspace, run, pipeline, deployment, model."""
        return self.config.platform_context

    def flush(self, timeout: float | None = None) -> bool:
        """Seal what was recorded until now into the spool; whether that was done.

        It waits at most `timeout` seconds (`shutdown_timeout` by default) and does not wait for
        exporters.
        """
        runtime = self.runtime
        if runtime is None or runtime.is_over:
            return False
        try:
            limit = _seconds(timeout, self.config.shutdown_timeout)
            return runtime.flush(limit)
        except Exception as error:
            record_error("flush", error)
            return False

    def shutdown(self, timeout: float | None = None) -> bool:
        """Close the session, seal it, and export it; whether all of that was done.

        It waits at most `timeout` seconds (`shutdown_timeout`, 30, by default). What could not be
        sent stays in the spool. A second call does nothing.
        """
        runtime = self.runtime
        if runtime is None:
            forget(self)
        if runtime is None or runtime.is_over:
            return True
        done = False
        # In a `finally` block, or an exception handler: that is why the session ends.
        self.fail(sys.exception())
        try:
            limit = _seconds(timeout, self.config.shutdown_timeout)
            forget(self)
            if self.instrumentation is not None:
                self.instrumentation.remove()
            done = runtime.shutdown(limit)
        except Exception as error:
            record_error("shutdown", error)
        try:
            if self.exits is not None:
                self.exits.remove()
        except Exception as error:
            record_error("exit", error)
        show_closing_line(runtime)
        return done

    def fail(self, error: BaseException | None) -> None:
        """An exception ends the program: mark the session, and what is open, as failed."""
        try:
            session = self.session
            if session is not None and self.enabled:
                failures.fail(session, error)
        except Exception as raised:
            record_error("failure", raised)

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """A signal ends the program: mark the session, and what is open, as killed."""
        try:
            session = self.session
            if session is not None and self.enabled:
                failures.terminate(session, number, frame)
        except Exception as raised:
            record_error("failure", raised)

    def health(self) -> dict[str, Any]:
        """How the SDK fares: queues, drops by cause, errors, exporters, spool, overhead."""
        try:
            if self.runtime is None:
                return disabled_health()
            found = health_of(self.runtime)
            if self.instrumentation is not None:
                found["hooks"] = self.instrumentation.health()
            return found
        except Exception as error:
            record_error("health", error)
            return disabled_health()

    def trace(self, format: str = "tree", name: str | None = None, last: int | None = None) -> Any:
        """The last scopes; see `profiler.trace`."""
        try:
            recent = Recent(0)
            if self.runtime is not None:
                recent = self.runtime.recent
                self.flush(_TRACE_FLUSH_S)
            return recent.read(format, name, last)
        except Exception as error:
            record_error("trace", error)
            return None

    def __enter__(self) -> Profiler:
        """The session, closed at the end of a `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.shutdown()


def _seconds(timeout: Any, default: float) -> float:
    """A time to wait: `default` where `timeout` is none, or no number."""
    try:
        asked = default if timeout is None else float(timeout)
    except Exception as error:
        record_error("timeout", error)
        return default
    # NaN fails both comparisons.
    return min(asked, threading.TIMEOUT_MAX) if asked > 0 else 0.0 if asked <= 0 else default


def _none() -> None:
    pass


class Active:
    """The profiler of this process, and the one before it, which `trace` still shows."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.profiler: Profiler | None = None
        self.last: Profiler | None = None
        self.waiting: Any = None
        """A session that is to open with the first thing recorded (`waiting.Waiting`)."""
        self.default: Callable[[], Any] = _none
        """Returns the default `Cirron`; the module of that class sets it."""


active = Active()


def forget(profiler: Profiler) -> None:
    """It is not the active one any more."""
    with active.lock:
        if active.profiler is profiler:
            active.profiler, active.last = None, profiler


def seal_late() -> None:
    """What was recorded after the last session of the process."""
    last = active.last
    if last is not None and last.runtime is not None:
        try:
            last.runtime.seal_late()
        except Exception as error:
            record_error("exit", error)
