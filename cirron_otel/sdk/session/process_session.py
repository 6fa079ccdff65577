"""The session of this process, for hooks into frameworks that start processes of their own.

Such hooks hand the trace over to the processes in variables, those of `cirron-otel run` and the
options of this session. A process that is started with them opens a session with its first record.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from opentelemetry.sdk.resources import SERVICE_NAME

from ...core.config.options import OPTIONS, Config
from ..tracing.buffers import hooks
from ..tracing.scope import NO_SESSION
from ..tracing.state import state
from .errors import record_error
from .handle import active, end_session, flush_within
from .job import BOOTSTRAP
from .joining import inject
from .run_details import add_hyperparameters
from .run_identity import RUN_ID_VARIABLE

PATH: Final = "PYTHONPATH"
_SERVICE_NAME: Final = "OTEL_SERVICE_NAME"
_OF_PROCESS: Final = frozenset({"enabled", "join", "output_dir", "run_name", "handle_signals"})
"""Options whose value a child process does not take over."""
_OTEL: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_PROPAGATORS",
)  # fmt: skip
"""OpenTelemetry's variables without secrets. The headers are not passed: schedulers show them."""


class ProcessSession:
    """The session of this process, as `HookContext.process`. Only `variables` may raise."""

    _is_begun: ClassVar = False
    """The same for all instances: the hooks of the next session end the work that begins now."""

    @property
    def is_begun(self) -> bool:
        """Whether `begin` was called, and `end` was not."""
        return ProcessSession._is_begun

    def variables(self, user: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for a process that joins the trace; empty if no session is open.

        Its session will be a child of the current scope. `user` are the variables that the process
        gets in any case. They take precedence, and PYTHONPATH is extended.
        """
        profiler = active.profiler
        if profiler is None or profiler.runtime is None or not profiler.enabled:
            return {}
        runtime = profiler.runtime
        found = {name: os.environ[name] for name in _OTEL if "@" not in os.environ.get(name, "@")}
        service = runtime.resource.value.attributes.get(SERVICE_NAME)
        found[_SERVICE_NAME] = str(service or runtime.run.script)
        found |= option_variables(profiler.config)
        found |= inject(environ=True)
        found["CIRRON_OUTPUT_DIR"] = str(Path(profiler.config.output_dir).absolute())
        found["CIRRON_RUN_NAME"] = runtime.run.name
        found[RUN_ID_VARIABLE] = runtime.run.id
        found = {name: text for name, text in found.items() if name not in user}
        return found | {PATH: with_hooks(user.get(PATH, f"${{{PATH}}}"))}

    def begin(
        self, attributes: Mapping[str, Any], hyperparameters: object = None, link: str = ""
    ) -> None:
        """Open the session of this process if it is not open, and set its attributes.

        `link` is the `traceparent` of a session that a session which opens now is linked to.
        """
        try:
            ProcessSession._is_begun = True
            if link and active.waiting is not None:
                active.waiting.joining.link = link
            if state.session is NO_SESSION:
                hooks.first()
            profiler = active.profiler
            if profiler is None or profiler.session is None:
                return
            for name, value in attributes.items():
                if value is not None:
                    profiler.session.set_attribute(name, value)
            if isinstance(hyperparameters, Mapping) and hyperparameters:
                add_hyperparameters(hyperparameters)
        except Exception as error:
            record_error("process", error)

    def end(self, error: BaseException | None = None) -> None:
        """Close the session, or flush it if the program opened it itself.

        `error` is the exception that ended the work of this process.
        """
        try:
            profiler, ProcessSession._is_begun = active.profiler, False
            if profiler is None:
                return
            limit = profiler.config.exit_timeout
            if profiler.is_automatic:
                profiler.fail(error)
                end_session(profiler, limit)
            else:
                flush_within(profiler, limit)
        except Exception as problem:
            record_error("process", problem)

    def renew(self, variables: Mapping[str, str]) -> None:
        """Close the session if it has begun; the next one joins the trace of `variables`."""
        try:
            if self.is_begun:
                self.end()
            os.environ.update(variables)
            if active.profiler is None and active.waiting is None:
                active.wait()
        except Exception as error:
            record_error("process", error)


def option_variables(config: Config) -> dict[str, str]:
    """Return the variables that set the options of `config` which are not the defaults.

    Secrets are left out, because the process may be started by a service that shows variables.
    """
    found = {}
    for option in OPTIONS:
        value = getattr(config, option.name)
        if value != option.default and not option.key.is_secret and option.name not in _OF_PROCESS:
            found[option.variable] = _text(value)
    return found


def _text(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def with_hooks(path: str) -> str:
    """Return a PYTHONPATH whose first entry is the directory of the hooks."""
    entries = [each for each in path.split(os.pathsep) if each != str(BOOTSTRAP)]
    return os.pathsep.join([str(BOOTSTRAP), *entries])
