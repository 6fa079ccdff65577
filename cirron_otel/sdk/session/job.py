"""The span of a job: what `cirron-otel run` opens around a command and hands to its processes.

It is a scope, `cirron.job`, in a session of the process that runs the command. That session states
no rank, for it trains nothing; the sessions of the ranks are children of the scope in
OpenTelemetry's tree: one run, one trace, no collective call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from opentelemetry.trace import Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ...core.config.options import Config
from ...core.spool.paths import SpoolPaths, batch_names
from ...semconv import JOB
from ..tracing.scope import Scope
from .identity import Identity
from .run_identity import RUN_ID_VARIABLE, RunIdentity, command_run
from .runtime import Runtime
from .starting import Joining, start_runtime

EXIT_CODE: Final = "process.exit.code"
"""OpenTelemetry's name, as `process.command` and its like are (semantic conventions, process)."""
BOOTSTRAP: Final = Path(__file__).parent / "bootstrap"
"""The directory on PYTHONPATH that has every Python process below wait for something to record."""

_RUN_NAME = "CIRRON_RUN_NAME"
_W3C = ("TRACEPARENT", "TRACESTATE")
_PATH = "PYTHONPATH"
_OUTPUT_DIR = "CIRRON_OUTPUT_DIR"
_SPOOL, _NONE = "spool", "none"
_propagator = TraceContextTextMapPropagator()


class Job:
    """A job that runs."""

    def __init__(self, runtime: Runtime, scope: Scope) -> None:
        """Made by `open_job`."""
        self._runtime, self._scope = runtime, scope
        self.paths = runtime.paths
        """Where the spool stands."""
        self.is_spooled = _SPOOL in runtime.config.output
        """Whether there is a spool at all."""
        self.held = _names(runtime.paths)
        """The batches that were there before it."""
        self.exporters = runtime.pipeline.exporters
        self.exit_timeout = runtime.config.exit_timeout
        """What the options give its end, in seconds."""

    @property
    def run(self) -> RunIdentity:
        """The run that the job is."""
        return self._runtime.run

    @property
    def trace_id(self) -> str:
        """The id of the run's trace, 32 hexadecimal digits."""
        return f"{self._scope.get_span_context().trace_id:032x}"

    @property
    def owner(self) -> str:
        """What the names of its own batches begin with, behind their time."""
        return self._runtime.owner.prefix

    def environment(self, environ: Mapping[str, str], *, hooks: bool = True) -> dict[str, str]:
        """`environ` as the job's processes are to have it: the trace, the spool, and the hooks.

        What else the environment carries (BAGGAGE) goes on as it is.
        """
        made = {name: value for name, value in environ.items() if name not in _W3C}
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, set_span_in_context(self._scope))
        made |= {name.upper(): value for name, value in carrier.items()}
        made[_OUTPUT_DIR] = str(self._runtime.config.output_dir)
        made[RUN_ID_VARIABLE] = self.run.id
        if self._runtime.config.run_name is not None:
            made[_RUN_NAME] = self._runtime.config.run_name
        return with_hooks(made) if hooks else made

    def end(self, code: int, attributes: Mapping[str, Any], timeout: float) -> bool:
        """The command is over, with this exit code; whether all was sealed and sent in `timeout` s.

        A code other than 0 is an error of the job.
        """
        scope = self._scope
        scope.set_attributes({EXIT_CODE: code, **attributes})
        if code:
            status = Status(StatusCode.ERROR, f"exit code {code}")
            scope.set_status(status)
            self._runtime.origin.session.set_status(status)
        scope.__exit__(None, None, None)
        return self._runtime.shutdown(timeout)


def open_job(
    config: Config,
    environ: Mapping[str, str],
    attributes: Mapping[str, Any],
    command: Sequence[str],
) -> Job:
    """Open the span of the job `command`, with these attributes; it joins what `environ` carries.

    Raises CirronOtelError where there is no place for a spool.
    """
    own = replace(
        config,
        frameworks=(_NONE,),
        snapshots=None,
        metrics=False,
        output=(_SPOOL,) if _SPOOL in config.output else (_NONE,),
    )
    run = command_run(config, environ, command)
    runtime = start_runtime(own, environ, Joining(identity=Identity(rank=None), run=run))
    scope = Scope(JOB)
    scope.__enter__()
    scope.set_attributes(dict(attributes))
    return Job(runtime, scope)


def _names(paths: SpoolPaths) -> frozenset[str]:
    try:
        return frozenset(batch_names(paths.spool))
    except OSError:  # there is no spool yet
        return frozenset()


def with_hooks(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the hooks' directory first on PYTHONPATH, once."""
    before = [each for each in environ.get(_PATH, "").split(os.pathsep) if each != str(BOOTSTRAP)]
    behind = os.pathsep.join(before)
    path = f"{BOOTSTRAP}{os.pathsep}{behind}" if behind else str(BOOTSTRAP)
    return {**environ, _PATH: path}
