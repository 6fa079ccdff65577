"""`Cirron`, for explicit configuration, and the functions that use the default instance."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, Unpack

from opentelemetry.sdk.trace import TracerProvider

from ...core.config.keywords import CirronOptions, Output, ProfileOptions, Size, Snapshots
from ...core.config.options import NOT_GIVEN, OPTIONS, Config, NotGiven
from ...core.config.resolve import Resolved, resolve
from ..snapshots.recorder import watch
from ..tracing.buffers import registry
from ..tracing.inference import inference
from ..tracing.loops import batches, epochs
from ..tracing.mark import mark
from ..tracing.open_scopes import open_in
from ..tracing.phase import STEPS, Phase
from ..tracing.scope import Scope
from ..tracing.state import CONTEXT, SCOPE_KEY
from ..tracing.trainings import training
from .errors import errors, record_error, report_problem
from .handle import Profiler, active
from .health import disabled_health
from .joining import inject
from .opening import open_profiler
from .run_identity import RUN_ID_VARIABLE
from .starting import Joining

_GIVEN_TO_CIRRON = (
    "api_key", "api_endpoint", "workspace_id", "output_dir", "snapshots", "sample_rate",
    "flush_interval", "spool_max_bytes", "ingest_path", "output", "trace_buffer_max_spans",
)  # fmt: skip


class Cirron:
    """Explicit configuration, which takes precedence over the environment and files.

    The parameters are the options of docs/configuration.md; None means "not given". All instances
    share the one session of the process.
    """

    def __init__(
        self,
        api_key: str | None = None,
        api_endpoint: str | None = None,
        workspace_id: str | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        snapshots: Snapshots | NotGiven | None = NOT_GIVEN,
        sample_rate: float | None = None,
        flush_interval: float | None = None,
        spool_max_bytes: Size | None = None,
        ingest_path: str | None = None,
        output: Output | Sequence[Output] | None = None,
        trace_buffer_max_spans: int | None = None,
        **options: Unpack[CirronOptions],
    ) -> None:
        """Store the parameters; nothing is read, opened, or started yet."""
        values = (
            api_key, api_endpoint, workspace_id, output_dir, snapshots, sample_rate,
            flush_interval, spool_max_bytes, ingest_path, output, trace_buffer_max_spans,
        )  # fmt: skip
        self._given: dict[str, Any] = dict(zip(_GIVEN_TO_CIRRON, values, strict=True)) | options
        # As in cirron-sdk, None means "not given" for the named parameters of the constructor.
        if snapshots is None:
            self._given["snapshots"] = NOT_GIVEN

    def __repr__(self) -> str:
        """Return a representation without the API key."""
        return f"Cirron(output_dir={self.config.output_dir})"

    @property
    def config(self) -> Config:
        """The options that a session opened now would use."""
        return resolve(None, instance=self._given).config

    def __getattr__(self, name: str) -> Any:
        """Return the current value of an option that is a named parameter of the constructor."""
        if name not in _GIVEN_TO_CIRRON:
            missing = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{missing}; docs/migrating.md lists what only cirron-sdk has")
        value = getattr(self.config, name)
        return str(value) if isinstance(value, Path) else value

    def profile(
        self,
        config: dict[str, Any] | None = None,
        frameworks: str | Sequence[str] | NotGiven | None = NOT_GIVEN,
        snapshots: Snapshots | NotGiven | None = NOT_GIVEN,
        sample_rate: float | NotGiven | None = NOT_GIVEN,
        flush_interval: float | NotGiven | None = NOT_GIVEN,
        enabled: bool | NotGiven | None = NOT_GIVEN,
        path: str | os.PathLike[str] | None = None,
        output: Output | Sequence[Output] | NotGiven | None = NOT_GIVEN,
        *,
        parent: object = None,
        link: object = None,
        provider: TracerProvider | None = None,
        name: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        **options: Unpack[ProfileOptions],
    ) -> Profiler:
        """Open the session of this process, as the module's `profile` does."""
        arguments = {
            "frameworks": frameworks, "snapshots": snapshots, "sample_rate": sample_rate,
            "flush_interval": flush_interval, "enabled": enabled, "output": output,
            "run_name": name, **options,
        }  # fmt: skip
        with active.lock:
            if active.profiler is not None and not _ends(active.profiler, name):
                return active.profiler
            problem: Exception | None = None
            try:
                resolved = resolve(arguments, config=config, instance=self._given, path=path)
            except Exception as error:
                # The requested options are unknown, so the safe choice is to record nothing.
                resolved, problem = Resolved(Config(enabled=False), (), {}), error
            joining = Joining(parent, link, provider)
            joining.hyperparameters = _hyperparameters(config, hyperparameters)
            profiler = open_profiler(resolved, joining, cirron=self)
            if problem is not None:
                record_error("configuration", problem)
            active.profiler = profiler
            return profiler

    def scope(self, name: str, index: int | None = None, **attrs: Any) -> Scope:
        """Create a scope; enter it with `with`."""
        return Scope(name, index, **attrs)

    mark = staticmethod(mark)
    training = staticmethod(training)
    epochs = staticmethod(epochs)
    batches = staticmethod(batches)
    inference = staticmethod(inference)
    watch = staticmethod(watch)
    inject = staticmethod(inject)

    def wrap(self, estimator: Any) -> Any:
        """Record the calls of an estimator of scikit-learn, as the module's `wrap` does."""
        from ..instrumentation.sklearn.wrapping import wrap  # noqa: PLC0415 - installs the hooks

        return wrap(estimator)

    def trace(self, format: str = "tree", name: str | None = None, last: int | None = None) -> Any:
        """Show the last scopes of this process, as the module's `trace` does."""
        return trace(format, name, last)

    def flush(self, timeout: float | None = None) -> bool:
        """Seal all records made so far into the spool; return whether that succeeded."""
        return flush(timeout)

    def shutdown(self, timeout: float | None = None) -> bool:
        """Close, seal, and export the session; return whether that succeeded."""
        return shutdown(timeout)

    def health(self) -> dict[str, Any]:
        """Return the state of the SDK: queues, drops by cause, errors, exporters, overhead."""
        return health()


class _Default:
    """The instance that `get_default` creates on the first call."""

    instance: Cirron | None = None


def get_default() -> Cirron:
    """Return the `Cirron` that the functions of this package use."""
    with active.lock:
        if _Default.instance is None:
            _Default.instance = Cirron()
        return _Default.instance


active.default = get_default


def profile(
    config: dict[str, Any] | None = None,
    frameworks: str | Sequence[str] | NotGiven | None = NOT_GIVEN,
    snapshots: Snapshots | NotGiven | None = NOT_GIVEN,
    sample_rate: float | NotGiven | None = NOT_GIVEN,
    flush_interval: float | NotGiven | None = NOT_GIVEN,
    enabled: bool | NotGiven | None = NOT_GIVEN,
    path: str | os.PathLike[str] | None = None,
    output: Output | Sequence[Output] | NotGiven | None = NOT_GIVEN,
    *,
    parent: object = None,
    link: object = None,
    provider: TracerProvider | None = None,
    name: str | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    **options: Unpack[ProfileOptions],
) -> Profiler:
    """Open the session of this process and start recording; a second call returns the same object.

    A second call with another `name` ends the session, and opens one of another run.

    The parameters are cirron-sdk's; the other options of docs/configuration.md are keywords.
    `snapshots=None` turns snapshots off; if it is not given, the default applies. `path` is the
    path of a cirron.yaml. `parent=` or `link=` (a Span, SpanContext, Context, or carrier) joins
    another trace. `provider=` is the TracerProvider to work in: by default the application's if it
    has set one, otherwise a new one that becomes global. `name` is the name of the run. Keys of
    `config` that are not options are recorded as hyperparameters of the run, as are all items of
    `hyperparameters`. Nothing is raised: errors are logged and counted by `health()`.
    """
    return get_default().profile(
        config, frameworks, snapshots, sample_rate, flush_interval, enabled, path, output,
        parent=parent, link=link, provider=provider, name=name, hyperparameters=hyperparameters,
        **options,
    )  # fmt: skip


def _ends(profiler: Profiler, name: str | None) -> bool:
    """End an open session if `name` is that of another run; return whether it was ended.

    A session stays open inside a scope of the program, while another thread has an open scope or
    step, and if its run began outside of the process.
    """
    try:
        run = profiler.run
        if name is None or run is None:
            return False
        name = resolve({"run_name": name}).config.run_name  # None if it is not a valid name
        if name is None or name in (run.name, profiler.config.run_name):
            return False
        current: Any = CONTEXT.get().get(SCOPE_KEY)
        if profiler.is_automatic or run.is_inherited or RUN_ID_VARIABLE in os.environ:
            reason = "that run did not begin with a call of profile() in this process"
        elif profiler.config.run_id is not None:
            reason = "its id is set"
        elif current is not None and current._depth and not isinstance(current, Phase):
            reason = f"the scope {current._name!r} is open"
        elif (elsewhere := _open_elsewhere()) is not None:
            reason = f"the scope {elsewhere._name!r} is open in another thread"
        else:
            profiler.shutdown()
            return True
        problem = f"profile(name={name!r}): run {run.name!r} continues, because {reason}"
        if errors.last.get("profile") != problem:
            report_problem("profile", problem)
    except Exception as error:
        record_error("profile", error)
    return False


def _open_elsewhere() -> Any:
    """Return a scope of the program or a step that is open in another thread, or None."""
    for buffers in tuple(registry):
        for scope in () if buffers.ident == get_ident() else open_in(buffers):
            if not isinstance(scope, Phase) or scope._name in STEPS:
                return scope
    return None


def _hyperparameters(
    config: Mapping[str, Any] | None, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the items of `config` that are not options, and the items of `given`; never raises."""
    options = {option.name for option in OPTIONS}
    try:
        values = {key: value for key, value in (config or {}).items() if key not in options}
        return values | dict(given or {})
    except Exception as error:
        record_error("hyperparameters", error)
        return {}


def flush(timeout: float | None = None) -> bool:
    """Seal all records made so far into the spool; return whether that succeeded.

    Waits at most `timeout` seconds (`shutdown_timeout` by default), and does not wait for
    exporters.
    """
    profiler = active.profiler
    return profiler.flush(timeout) if profiler is not None else False


def shutdown(timeout: float | None = None) -> bool:
    """Close, seal, and export the session; return whether that succeeded within `timeout` s."""
    profiler = active.profiler
    return profiler.shutdown(timeout) if profiler is not None else True


def health() -> dict[str, Any]:
    """Return the state of the SDK: queues, drops by cause, errors, exporters, spool, overhead."""
    profiler = active.profiler or active.last
    return profiler.health() if profiler is not None else disabled_health()


def trace(format: str = "tree", name: str | None = None, last: int | None = None) -> Any:
    """Show the last scopes of this process: `tree` prints them; `dict`, `json`, `df` return them.

    `name` selects the scopes of that name, and `last` limits the result to the last roots. `df`
    needs pandas. An invalid format, or missing pandas, is logged, and None is returned.
    """
    profiler = active.profiler or active.last or Profiler(None, Config())
    return profiler.trace(format, name, last)
