"""`Profiler`, the user's handle to the session of this process.

At its end, a session writes a closing line to stderr: the command that reports the run.
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.process import parent_process
from pathlib import Path
from types import FrameType
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from ...core.config.options import Config
from ...core.spool.directories import DEFAULT_NAME
from ...ids import SHORT_ID_DIGITS
from ..flush.flush_result import RecordCounts
from ..instrumentation.installing import Instrumentation
from ..tracing.scope import Scope
from . import exits
from .errors import record_error
from .exits import Exits
from .health import disabled_health, health_of
from .identity import NO_SOURCE
from .readback import Recent
from .run_identity import RUN_ID_VARIABLE, RunIdentity
from .runtime import Runtime

_TRACE_FLUSH_S = 5.0


class Profiler:
    """The result of `profile()`, which controls the session of this process.

    The caller may discard it. `enabled` is False if profiling is turned off; then every method does
    nothing.
    """

    def __init__(self, runtime: Runtime | None, config: Config, cirron: Any = None) -> None:
        """Only `profile()` creates it."""
        self.runtime = runtime
        """The open session; None if there is none."""
        self.exits: Exits | None = None
        self.instrumentation: Instrumentation | None = None
        """The hooks into frameworks."""
        self.config = config
        self.is_automatic = False
        """Whether the session opened with the first record, without a call of `profile()`."""
        self._cirron = cirron

    @property
    def cirron(self) -> Any:
        """The `Cirron` that opened the session."""
        return active.default() if self._cirron is None else self._cirron

    def __repr__(self) -> str:
        """Return the session and the directory of its spool."""
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
        """The TracerProvider that the session works in."""
        return self.runtime.link.provider if self.runtime is not None else None

    @property
    def installed_hooks(self) -> list[str]:
        """The frameworks that are hooked."""
        return self.instrumentation.installed if self.instrumentation is not None else []

    @property
    def platform_context(self) -> dict[str, str]:
        """The platform's ids of this run: workspace, run, pipeline, deployment, model."""
        return self.config.platform_context

    def flush(self, timeout: float | None = None) -> bool:
        """Seal all records made so far into the spool; return whether that succeeded.

        Waits at most `timeout` seconds (`shutdown_timeout` by default), and does not wait for
        exporters.
        """
        return flush_within(self, _seconds(timeout, self.config.shutdown_timeout))

    def shutdown(self, timeout: float | None = None) -> bool:
        """Close, seal, and export the session; return whether all of that succeeded.

        It waits at most `timeout` seconds (`shutdown_timeout`, 30, by default). Records that are
        not sealed by then are sealed in the background; the process's exit, and the opening of the
        next session, wait for that. Unsent batches stay in the spool. A second call does nothing.
        """
        return self._close(_seconds(timeout, self.config.shutdown_timeout), is_exit=False)

    def _close(self, limit: float | None, *, is_exit: bool) -> bool:
        runtime = self.runtime
        if runtime is None:
            forget(self)
        if runtime is None or runtime.is_over:
            return True
        done = False
        # In a `finally` block or an exception handler, the exception is the cause of the end.
        self.fail(sys.exception())
        try:
            forget(self)
            if self.instrumentation is not None:
                self.instrumentation.remove()
            done = runtime.shutdown(limit, is_exit=is_exit)
        except Exception as error:
            record_error("shutdown", error)
        finally:  # also after Ctrl-C
            self._remove_exits(runtime)
            show_left(runtime)
        show_closing_line(runtime)
        return done

    def _finish(self, runtime: Runtime, limit: float | None) -> None:
        """Complete a session whose `shutdown` had not enough time."""
        try:
            runtime.finish(limit)
        except Exception as error:
            record_error("shutdown", error)
        finally:
            self._remove_exits(runtime)
            show_left(runtime)

    def _remove_exits(self, runtime: Runtime) -> None:
        """Remove the handlers of exits, unless the flush thread still seals records."""
        try:
            if self.exits is not None and runtime.pipeline.is_over:
                self.exits.remove()
        except Exception as error:
            record_error("exit", error)

    def fail(self, error: BaseException | None) -> None:
        """Mark the session and all open scopes as failed: an exception ends the program."""
        try:
            session = self.session
            if session is not None and self.enabled:
                exits.fail(session, error)
        except Exception as raised:
            record_error("failure", raised)

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Mark the session and all open scopes as killed: a signal ends the program."""
        try:
            session = self.session
            if session is not None and self.enabled:
                exits.terminate(session, number, frame)
        except Exception as raised:
            record_error("failure", raised)

    def health(self) -> dict[str, Any]:
        """Return the state of the SDK: queues, drops, errors, exporters, spool, overhead."""
        try:
            if self.runtime is None:
                return disabled_health()
            health = health_of(self.runtime)
            if self.instrumentation is not None:
                health["hooks"] = self.instrumentation.health()
            return health
        except Exception as error:
            record_error("health", error)
            return disabled_health()

    def trace(self, format: str = "tree", name: str | None = None, last: int | None = None) -> Any:
        """Return the last scopes in one of the formats of `cirron.trace`. Raises nothing."""
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
        """Enter a `with` block; the session is closed at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session."""
        self.shutdown()


def flush_within(profiler: Profiler, limit: float | None) -> bool:
    """Do the same as `Profiler.flush`; a limit of None waits as long as there is progress."""
    runtime = profiler.runtime
    if runtime is None or runtime.is_over:
        return False
    try:
        return runtime.flush(limit)
    except Exception as error:
        record_error("flush", error)
        return False


def end_session(profiler: Profiler, limit: float | None) -> None:
    """Close the session because the process ends; after `shutdown`, complete the sealing.

    Waits at most `limit` seconds; None waits as long as there is progress. What is not sealed by
    then is saved beside the spool for recovery.
    """
    if profiler.enabled:
        profiler._close(limit, is_exit=True)
    elif profiler.runtime is not None:
        profiler._finish(profiler.runtime, limit)


def _seconds(timeout: Any, default: float) -> float:
    """Return the time to wait: `default` if `timeout` is None or not a number."""
    try:
        seconds = default if timeout is None else float(timeout)
    except Exception as error:
        record_error("timeout", error)
        return default
    # NaN fails both comparisons.
    return min(seconds, threading.TIMEOUT_MAX) if seconds > 0 else 0.0 if seconds <= 0 else default


def _none() -> None:
    pass


class Active:
    """The profiler of this process, and the previous one, whose records `trace` still shows."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.profiler: Profiler | None = None
        self.last: Profiler | None = None
        self.waiting: Any = None
        """The session that will open with the first record (`waiting.Waiting`), or None."""
        self.wait: Callable[[], object] = _none
        """Lets the next session open with the first record; set by `waiting`."""
        self.default: Callable[[], Any] = _none
        """Returns the default `Cirron`; set by the module that defines this class."""


active = Active()


def forget(profiler: Profiler) -> None:
    """Deactivate a profiler if it is the active one; it becomes the previous one."""
    with active.lock:
        if active.profiler is profiler:
            active.profiler, active.last = None, profiler


def seal_late() -> None:
    """Seal records made after the last session of the process."""
    last = active.last
    if last is not None and last.runtime is not None:
        try:
            last.runtime.seal_late()
        except Exception as error:
            record_error("exit", error)


def show_left(runtime: Runtime) -> None:
    """Write to stderr what the end of the process left unsealed, once; never raises."""
    try:
        text = "" if runtime.is_left_shown else left_text(runtime)
        if text and sys.stderr is not None:
            runtime.is_left_shown = True
            sys.stderr.write(text)
            sys.stderr.flush()
    except Exception as error:
        record_error("closing line", error)


def left_text(runtime: Runtime) -> str:
    """Return the lines about saved and lost records; "" if everything is sealed."""
    pipeline, quiet = runtime.pipeline, runtime.config.quiet
    left, remainder = pipeline.collector.left, runtime.remainder
    lines = []
    if remainder.saved and not quiet:
        command = shlex.join(["cirron-otel", "spool", "recover", _shown(runtime.paths.root)])
        lines.append(
            f"the time to exit was over; saved beside the spool: {_records(remainder.saved)}."
            f" The next session in this directory seals them, or: {command}"
        )
    if left:
        lines.append(f"the time to exit was over; lost: {_records(left)}")
    return "".join(f"cirron-otel: {line}\n" for line in lines)


def _records(counts: RecordCounts) -> str:
    kinds = ("span", counts.spans), ("mark", counts.marks), ("snapshot", counts.snapshots)
    parts = [f"{number:,} {kind}{'s' * (number != 1)}" for kind, number in kinds if number]
    return ", ".join(parts)


def announce_end(runtime: Runtime) -> None:
    """Write to stderr what the exit still has to seal; never raises."""
    try:
        if runtime.config.quiet or sys.stderr is None:
            return
        scopes, marks = runtime.unsealed()
        sys.stderr.write(
            f"cirron-otel: sealing the last records of the session: {scopes:,} scopes and"
            f" {marks:,} marks are left\n"
        )
        sys.stderr.flush()
    except Exception as error:
        record_error("closing line", error)


def show_closing_line(runtime: Runtime) -> None:
    """Write the closing line to stderr if `is_wanted`; never raises."""
    try:
        if is_wanted(runtime, sys.modules):
            sys.stderr.write(closing_line(runtime) + "\n")
            sys.stderr.flush()
    except Exception as error:
        record_error("closing line", error)


def is_wanted(runtime: Runtime, modules: Mapping[str, object]) -> bool:
    """Return whether the closing line is shown at the end of this session.

    It is omitted under `cirron-otel run` (which prints a report), in pytest, in ranks other than 0,
    in forked and spawned children, and if the session recorded nothing or has no spool.
    `quiet=True` always omits it; `quiet=False` shows it even in pytest and under `cirron-otel run`.
    """
    quiet = runtime.config.quiet
    sealer = runtime.pipeline.sealer
    if quiet or sys.stderr is None or sealer.kind is None or not sealer.batches:
        return False
    identity = runtime.identity
    if identity.rank is None or (identity.rank and identity.source != NO_SOURCE):
        return False
    if runtime.run.is_inherited or parent_process() is not None:
        return False
    if quiet is False:
        return True
    is_below_run = bool(runtime.environ.get(RUN_ID_VARIABLE))
    return not is_below_run and "_pytest" not in modules


def closing_line(runtime: Runtime) -> str:
    """Return the closing line: the run's name, its spool, and the command that reports it."""
    spool = _shown(runtime.paths.root)
    words = ["cirron-otel", "report"]
    if spool != DEFAULT_NAME:
        words.append(spool)
    words += ["--run", runtime.run.id[:SHORT_ID_DIGITS]]
    return f"cirron-otel: run {runtime.run.name} is in {spool}: {shlex.join(words)}"


def _shown(path: Path) -> str:
    """Return a path as text, relative to the working directory if it is inside that directory."""
    try:
        shown = str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        shown = str(path)
    return "".join(char if char.isprintable() else "?" for char in shown)
