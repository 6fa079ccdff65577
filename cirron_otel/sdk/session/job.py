"""The span of a job, which `cirron-otel run` opens for a command and passes to its processes.

The span is a scope, `cirron.job`, in a session of the process that runs the command. That session
has no rank, because it does not train. In OpenTelemetry's tree the sessions of the ranks are
children of the scope, so one run is one trace, without a collective call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ...core.config.options import Config
from ...core.spool.oom_kills import kills_text, risen
from ...core.spool.paths import SpoolPaths, batch_names
from ...semconv import JOB, OOM_KILLS
from ..tracing.scope import Scope
from .handle import announce_end, show_left
from .identity import Identity
from .process_number import JOB_PROCESS
from .run_details import without_details
from .run_identity import RUN_ID_VARIABLE, RunIdentity, command_run
from .runtime import Runtime
from .starting import Joining, start_runtime

EXIT_CODE: Final = "process.exit.code"
"""OpenTelemetry's attribute name for the exit code (semantic conventions, process)."""
BOOTSTRAP: Final = Path(__file__).parent / "bootstrap"
"""The directory on PYTHONPATH that makes every Python child process open a session with its first
record."""

_RUN_NAME = "CIRRON_RUN_NAME"
_W3C = ("TRACEPARENT", "TRACESTATE")
_PATH = "PYTHONPATH"
_OUTPUT_DIR = "CIRRON_OUTPUT_DIR"
_SPOOL, _NONE = "spool", "none"
_propagator = TraceContextTextMapPropagator()


class Job:
    """A running job."""

    def __init__(self, runtime: Runtime, scope: Scope, config: Config) -> None:
        """Only `open_job` creates it. `config` applies to the job's processes."""
        self._runtime, self._scope, self.config = runtime, scope, config
        self.paths = runtime.paths
        """The paths of the spool."""
        self.is_spooled = _SPOOL in runtime.config.output
        """Whether there is a spool."""
        self.held = _names(runtime.paths)
        """The batches that were in the spool before the job."""
        self.exporters = runtime.pipeline.exporters
        self.exit_timeout = runtime.config.exit_timeout
        """Time limit for ending the job, in seconds; None: no limit."""

    @property
    def run(self) -> RunIdentity:
        """The run of the job."""
        return self._runtime.run

    @property
    def trace_id(self) -> str:
        """The id of the run's trace, 32 hexadecimal digits."""
        return f"{self._scope.get_span_context().trace_id:032x}"

    @property
    def metrics_resource(self) -> Resource:
        """The resource of the job's metrics."""
        return without_details(self._runtime.resource.value)

    @property
    def owner(self) -> str:
        """The job's owner prefix, which follows the time in the file names of its own batches."""
        return self._runtime.owner.prefix

    @property
    def oom_kills(self) -> int:
        """How many processes of this cgroup the kernel has killed for lack of memory so far."""
        return risen(self._runtime.origin.oom_kills)

    def environment(self, environ: Mapping[str, str], *, hooks: bool = True) -> dict[str, str]:
        """Return the environment of the job's processes: the trace, the spool, and the hooks.

        All other variables, such as BAGGAGE, are unchanged.
        """
        variables = {name: value for name, value in environ.items() if name not in _W3C}
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, set_span_in_context(self._scope))
        variables |= {name.upper(): value for name, value in carrier.items()}
        variables[_OUTPUT_DIR] = str(self._runtime.config.output_dir)
        variables[RUN_ID_VARIABLE] = self.run.id
        variables[JOB_PROCESS] = str(os.getpid())
        if self._runtime.config.run_name is not None:
            variables[_RUN_NAME] = self._runtime.config.run_name
        return with_hooks(variables) if hooks else variables

    def end(self, code: int, attributes: Mapping[str, Any], timeout: float | None) -> bool:
        """End the job with an exit code; return whether all records are sealed and sent in time.

        The limit is `timeout` seconds; None waits as long as there is progress. An exit code other
        than 0 sets the status ERROR.
        """
        scope = self._scope
        kills = self.oom_kills
        known = {OOM_KILLS: kills} if kills else {}
        scope.set_attributes({EXIT_CODE: code, **known, **attributes})
        if code:
            status = Status(StatusCode.ERROR, f"exit code {code}{kills_text(kills)}")
            scope.set_status(status)
            self._runtime.origin.session.set_status(status)
        scope.__exit__(None, None, None)
        is_done = self._runtime.shutdown(timeout, is_exit=True)
        show_left(self._runtime)
        return is_done


def open_job(
    config: Config,
    environ: Mapping[str, str],
    attributes: Mapping[str, Any],
    command: Sequence[str],
) -> Job:
    """Open the span of the job `command` with `attributes`; it joins the trace in `environ`.

    Raises CirronOtelError if the spool cannot be created.
    """
    job_config = replace(
        config,
        frameworks=(_NONE,),
        capture=(),
        snapshots=None,
        digest=None,
        sample_interval=None,
        metrics=False,
        output=(_SPOOL,) if _SPOOL in config.output else (_NONE,),
    )
    run = command_run(config, environ, command)
    runtime = start_runtime(job_config, environ, Joining(identity=Identity(rank=None), run=run))
    runtime.pipeline.announce = partial(announce_end, runtime)
    scope = Scope(JOB)
    scope.__enter__()
    scope.set_attributes(dict(attributes))
    return Job(runtime, scope, config)


def _names(paths: SpoolPaths) -> frozenset[str]:
    try:
        return frozenset(batch_names(paths.spool))
    except OSError:  # there is no spool yet
        return frozenset()


def with_hooks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the hooks' directory once on PYTHONPATH, as the first entry."""
    entries = [each for each in environ.get(_PATH, "").split(os.pathsep) if each != str(BOOTSTRAP)]
    rest = os.pathsep.join(entries)
    path = f"{BOOTSTRAP}{os.pathsep}{rest}" if rest else str(BOOTSTRAP)
    return {**environ, _PATH: path}
