"""The composition root: `profile()`, the `Profiler` that it returns, and explicit `Cirron()`s.

One session is open in a process at a time; every entry point reaches it here.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider

from .config import NOT_GIVEN, Config
from .config.resolve import Resolved, resolve
from .sdk import forks
from .sdk.errors import errors, swallowed
from .sdk.exits import Exits
from .sdk.foreign import ForeignSpans
from .sdk.health import disabled_health, health_of
from .sdk.inference import inference
from .sdk.joining import inject
from .sdk.loops import batches, epochs
from .sdk.mark import mark
from .sdk.readback import Recent
from .sdk.runtime import Joining, Runtime, start_runtime
from .sdk.scope import Scope
from .sdk.span_processor import ForeignSpanProcessor
from .sdk.state import state
from .sdk.watching import watch

__all__ = [
    "Cirron", "CirronSpanProcessor", "Profiler", "batches", "epochs", "flush", "get_default",
    "health", "inference", "inject", "mark", "profile", "shutdown", "trace", "watch",
]  # fmt: skip

_TRACE_FLUSH_S = 5.0
_GIVEN_TO_CIRRON = (
    "api_key", "api_endpoint", "workspace_id", "output_dir", "snapshots", "sample_rate",
    "flush_interval", "spool_max_bytes", "ingest_path", "output", "trace_buffer_max_spans",
)  # fmt: skip


class Profiler:
    """What `profile()` returns: the session of this process. It may be thrown away.

    `enabled` is False where profiling was turned off; then every method does nothing.
    """

    def __init__(self, runtime: Runtime | None, config: Config, cirron: Cirron) -> None:
        """Made by `profile()` alone."""
        self._runtime = runtime
        self._exits: Exits | None = None
        self.config = config
        self.cirron = cirron

    @property
    def enabled(self) -> bool:
        """Whether a session is open."""
        return self._runtime is not None and not self._runtime.is_over

    @property
    def session(self) -> Scope | None:
        """The session's root scope."""
        return self._runtime.origin.session if self._runtime is not None else None

    @property
    def provider(self) -> TracerProvider | None:
        """The provider that the session works in."""
        return self._runtime.provider if self._runtime is not None else None

    @property
    def installed_hooks(self) -> list[str]:
        """The frameworks that are hooked."""
        return []

    @property
    def platform_context(self) -> dict[str, str]:
        """The ids that the platform gave this run: workspace, run, pipeline, deployment, model."""
        return self.config.platform_context

    def flush(self, timeout: float | None = None) -> bool:
        """Seal what was recorded until now into the spool; whether that was done.

        It waits at most `timeout` seconds (`shutdown_timeout` by default) and does not wait for
        exporters.
        """
        runtime = self._runtime
        if runtime is None or runtime.is_over:
            return False
        try:
            limit = _seconds(timeout, self.config.shutdown_timeout)
            return runtime.pipeline.flush(limit)
        except Exception as error:
            swallowed("flush", error)
            return False

    def shutdown(self, timeout: float | None = None) -> bool:
        """Close the session, seal it, and export it; whether all of that was done.

        It waits at most `timeout` seconds (`shutdown_timeout`, 30, by default). What could not be
        sent stays in the spool. A second call does nothing.
        """
        runtime = self._runtime
        if runtime is None:
            _forget(self)
        if runtime is None or runtime.is_over:
            return True
        done = False
        try:
            limit = _seconds(timeout, self.config.shutdown_timeout)
            _forget(self)
            done = runtime.shutdown(limit)
        except Exception as error:
            swallowed("shutdown", error)
        try:
            if self._exits is not None:
                self._exits.remove()
        except Exception as error:
            swallowed("exit", error)
        return done

    def health(self) -> dict[str, Any]:
        """How the SDK fares: queues, drops by cause, errors, exporters, spool, overhead."""
        try:
            if self._runtime is None:
                return disabled_health()
            return health_of(self._runtime)
        except Exception as error:
            swallowed("health", error)
            return disabled_health()

    def trace(self, format: str = "tree", name: str | None = None, last: int | None = None) -> Any:
        """The last scopes; see `trace`."""
        try:
            recent = Recent(0)
            if self._runtime is not None:
                recent = self._runtime.recent
                self.flush(_TRACE_FLUSH_S)
            return recent.read(format, name, last)
        except Exception as error:
            swallowed("trace", error)
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
        swallowed("timeout", error)
        return default
    # NaN fails both comparisons.
    return min(asked, threading.TIMEOUT_MAX) if asked > 0 else 0.0 if asked <= 0 else default


class _Active:
    """The profiler of this process, and the one before it, which `trace` still shows."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.profiler: Profiler | None = None
        self.last: Profiler | None = None
        self.cirron: Cirron | None = None


_active = _Active()


def _forget(profiler: Profiler) -> None:
    with _active.lock:
        if _active.profiler is profiler:
            _active.profiler, _active.last = None, profiler


def _seal_late() -> None:
    """What was recorded after the last session of the process."""
    last = _active.last
    if last is not None and last._runtime is not None:
        try:
            last._runtime.seal_late()
        except Exception as error:
            swallowed("exit", error)


class Cirron:
    """Explicit configuration: what is given here is asked for before the environment and files.

    The parameters are options of docs/configuration.md; None stands for "not given". All instances
    share the one session of the process.
    """

    def __init__(
        self,
        api_key: str | None = None,
        api_endpoint: str | None = None,
        workspace_id: str | None = None,
        output_dir: str | None = None,
        snapshots: Any = NOT_GIVEN,
        sample_rate: float | None = None,
        flush_interval: float | None = None,
        spool_max_bytes: int | None = None,
        ingest_path: str | None = None,
        output: str | list[str] | None = None,
        trace_buffer_max_spans: int | None = None,
        **options: Any,
    ) -> None:
        """Nothing is read, opened or started yet."""
        own = (
            api_key, api_endpoint, workspace_id, output_dir, snapshots, sample_rate,
            flush_interval, spool_max_bytes, ingest_path, output, trace_buffer_max_spans,
        )  # fmt: skip
        self._given: dict[str, Any] = dict(zip(_GIVEN_TO_CIRRON, own, strict=True)) | options
        # cirron-sdk's None is "not given" here, too, for what the constructor takes by name.
        if snapshots is None:
            self._given["snapshots"] = NOT_GIVEN

    def __repr__(self) -> str:
        """Without the key."""
        return f"Cirron(output_dir={self.config.output_dir})"

    @property
    def config(self) -> Config:
        """The options as they would be now."""
        return resolve(None, instance=self._given).config

    def __getattr__(self, name: str) -> Any:
        """The options that the constructor takes by name, as they would be now."""
        if name not in _GIVEN_TO_CIRRON:
            missing = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{missing}; docs/migrating.md says what is cirron-sdk's alone")
        value = getattr(self.config, name)
        return str(value) if isinstance(value, Path) else value

    def profile(
        self,
        config: dict[str, Any] | None = None,
        frameworks: Any = NOT_GIVEN,
        snapshots: Any = NOT_GIVEN,
        sample_rate: Any = NOT_GIVEN,
        flush_interval: Any = NOT_GIVEN,
        enabled: Any = NOT_GIVEN,
        path: Any = None,
        output: Any = NOT_GIVEN,
        *,
        parent: object = None,
        link: object = None,
        provider: TracerProvider | None = None,
        **options: Any,
    ) -> Profiler:
        """Open the session; see the module's `profile`."""
        given = {
            "frameworks": frameworks, "snapshots": snapshots, "sample_rate": sample_rate,
            "flush_interval": flush_interval, "enabled": enabled, "output": output, **options,
        }  # fmt: skip
        with _active.lock:
            if _active.profiler is not None:
                return _active.profiler
            problem: Exception | None = None
            try:
                resolved = resolve(given, config=config, instance=self._given, path=path)
            except Exception as error:
                # What was asked for is not known: nothing is the safe reading.
                resolved, problem = Resolved(Config(enabled=False), (), {}), error
            profiler = self._open(resolved, Joining(parent, link, provider))
            if problem is not None:
                swallowed("configuration", problem)
            _active.profiler = profiler
            return profiler

    def _open(self, resolved: Resolved, joining: Joining) -> Profiler:
        config = resolved.config
        errors.reset()
        for problem in resolved.problems:
            swallowed(f"configuration: {problem}", problem)
        state.recording = config.enabled
        if not config.enabled:
            return Profiler(None, config, self)
        try:
            runtime = start_runtime(config, os.environ, joining)
        except Exception as error:
            swallowed("profile", error)
            return Profiler(None, config, self)
        profiler = Profiler(runtime, config, self)
        try:
            self._prepare_exits(profiler, resolved)
        except Exception as error:
            swallowed("exit", error)
        return profiler

    def _prepare_exits(self, profiler: Profiler, resolved: Resolved) -> None:
        limit = resolved.config.exit_timeout
        atexit.unregister(_seal_late)
        atexit.register(_seal_late)  # before the session's own: it runs after that
        exits = Exits(lambda: profiler.flush(limit), lambda: _end(profiler, limit))
        profiler._exits = exits
        exits.install(signals=resolved.config.handle_signals)
        forks.finish_with_process(lambda: profiler.shutdown(limit))
        forks.watch_forks(lambda: _after_fork(profiler, resolved))

    def scope(self, name: str, index: int | None = None, **attrs: Any) -> Scope:
        """A scope; see `scope`."""
        return Scope(name, index, **attrs)

    mark = staticmethod(mark)
    epochs = staticmethod(epochs)
    batches = staticmethod(batches)
    inference = staticmethod(inference)
    watch = staticmethod(watch)
    inject = staticmethod(inject)

    def trace(self, format: str = "tree", name: str | None = None, last: int | None = None) -> Any:
        """The last scopes; see `trace`."""
        return trace(format, name, last)

    def flush(self, timeout: float | None = None) -> bool:
        """Seal what was recorded; see `flush`."""
        return flush(timeout)

    def shutdown(self, timeout: float | None = None) -> bool:
        """Close the session; see `shutdown`."""
        return shutdown(timeout)

    def health(self) -> dict[str, Any]:
        """How the SDK fares; see `health`."""
        return health()


def _end(profiler: Profiler, limit: float) -> None:
    """At a signal or the interpreter's exit: close the session, within `limit` seconds.

    The signal may have interrupted a `shutdown` in the same thread, which then goes on no more.
    """
    runtime = profiler._runtime
    if profiler.enabled:
        profiler.shutdown(limit)
    elif runtime is not None:
        runtime.pipeline.shutdown(limit)
        runtime.owner.release()


def _after_fork(parent: Profiler, resolved: Resolved) -> None:
    """In a forked child: let go of the parent's session; the first scope opens one of its own."""
    runtime = parent._runtime
    if runtime is None or runtime.is_over:
        return
    _active.lock = threading.RLock()
    if parent._exits is not None:
        parent._exits.remove()
    context = runtime.origin.session.get_span_context()
    runtime.abandon()
    _active.profiler, _active.last = None, None
    cirron = parent.cirron

    def revive() -> None:
        with _active.lock:
            if _active.profiler is None:
                _active.profiler = cirron._open(resolved, Joining(link=context))

    forks.revive_later(revive)


def get_default() -> Cirron:
    """The `Cirron` behind the functions of this package."""
    with _active.lock:
        if _active.cirron is None:
            _active.cirron = Cirron()
        return _active.cirron


def profile(
    config: dict[str, Any] | None = None,
    frameworks: Any = NOT_GIVEN,
    snapshots: Any = NOT_GIVEN,
    sample_rate: Any = NOT_GIVEN,
    flush_interval: Any = NOT_GIVEN,
    enabled: Any = NOT_GIVEN,
    path: Any = None,
    output: Any = NOT_GIVEN,
    **more: Any,
) -> Profiler:
    """Open the session of this process and start what records it; called again, the same Profiler.

    The parameters are those of cirron-sdk, further options of docs/configuration.md go by keyword.
    `snapshots=None` is off; not given is the default. `path` names a cirron.yaml. `parent=` or
    `link=` (a Span, SpanContext, Context or carrier) join another trace, `provider=` names a
    TracerProvider to work in: by default the application's where it has set one, else one is made
    and set. Nothing is raised: what is wrong is logged, and `health()` counts it.
    """
    return get_default().profile(
        config, frameworks, snapshots, sample_rate, flush_interval, enabled, path, output, **more
    )


def flush(timeout: float | None = None) -> bool:
    """Seal what was recorded until now into the spool; whether that was done.

    It waits at most `timeout` seconds (`shutdown_timeout` by default), not for exporters.
    """
    profiler = _active.profiler
    return profiler.flush(timeout) if profiler is not None else False


def shutdown(timeout: float | None = None) -> bool:
    """Close the session, seal it, and export it; whether all of that was done in `timeout` s."""
    profiler = _active.profiler
    return profiler.shutdown(timeout) if profiler is not None else True


def health() -> dict[str, Any]:
    """How the SDK fares: queues, drops by cause, errors, exporters, spool, overhead."""
    profiler = _active.profiler or _active.last
    return profiler.health() if profiler is not None else disabled_health()


def trace(format: str = "tree", name: str | None = None, last: int | None = None) -> Any:
    """The last scopes of this process: `tree` prints them, `dict`, `json` and `df` return them.

    `name` keeps the scopes of that name, `last` the last so many roots. `df` needs pandas. What
    cannot be had (another format, no pandas) is logged, and None returned.
    """
    profiler = _active.profiler or _active.last or Profiler(None, Config(), get_default())
    return profiler.trace(format, name, last)


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
        with _active.lock:
            running = _active.profiler
            if running is not None and running._runtime is not None:
                self.foreign = running._runtime.processor.foreign
                return
            try:
                resolved = resolve(options)
                joining = Joining(parent, link, None, self)
                self._profiler = _active.profiler = get_default()._open(resolved, joining)
            except Exception as error:
                swallowed("profile", error)

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
        """Seal what was recorded until now."""
        try:
            return flush(timeout_millis / 1000)
        except Exception as error:
            swallowed("flush", error)
            return False
