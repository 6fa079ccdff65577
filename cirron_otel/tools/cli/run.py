"""`cirron-otel run`: trace a training job from outside.

The job runs as a child process, and signals are forwarded to it (`Child`). At the end, the open
scopes of dead processes are closed, unsent batches are sent, and a summary is printed.
"""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import CirronOtelError
from ...sdk.session.redaction import redacted
from ..present.formatting import count, duration, printable
from . import output, signals
from .child import BY_SIGNAL, Child, NotStartedError, signals_held

if TYPE_CHECKING:
    from ...core.config.resolve import Resolved
    from ...sdk.session.job import Job
    from ..convert.flush import TargetReport
    from .against import Watcher
    from .finding_metrics import FindingMetrics
    from .job_report import JobReport
    from .run_summary import ConcludedRun, RunBatches


_VARIABLE = "CIRRON_{}"
"""The variable of an option."""
_PATIENCE_S = 10.0
"""The time to wait at the end for a target that does not answer, seconds."""
_MOST = 4000
"""The maximum length of the command line in the span, in characters."""


@dataclass(frozen=True, slots=True)
class _Options:
    command: tuple[str, ...]
    has_hooks: bool
    has_arguments: bool
    is_quiet: bool
    name: str | None
    variables: Mapping[str, str]
    """Variables of the command's processes that options set."""
    summary: str | None
    """The file for the final summary."""


def _option_of(name: str, metavar: str, text: str) -> Callable[[Any], Any]:
    """Return the decorator for `--name`, which sets the configuration option of that name."""
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        metavar=metavar,
        callback=lambda _context, _parameter, value: _checked(name, value),
        help=text,
    )


@click.command(
    short_help="Run a training job, traced from outside.",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--output",
    "directory",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The directory of the spool; by default CIRRON_OUTPUT_DIR, else .cirron.",
)
@click.option(
    "--no-hooks", is_flag=True, help="Record the job's span, and nothing in its processes."
)
@click.option(
    "--command-args",
    is_flag=True,
    help="Also record process.command_args: the list of arguments, without secrets.",
)
@click.option(
    "--name", metavar="NAME", help="The name of the run; by default the script and a short id."
)
@_option_of(
    "sample_interval",
    "SECONDS",
    "The time between samples of memory, CPU and GPU; `none`: no samples. By default 1.",
)
@_option_of(
    "digest",
    "MODE",
    "Digest the tensors of each step: `step`, one digest for each quantity, or `tensors`, also one"
    " for each tensor.",
)
@_option_of("digest_every", "N", "Digest only the steps with a number that N divides.")
@_option_of("digest_keep", "A..B", "Store the tensors of the steps A to B.")
@click.option(
    "--summary",
    "summary",
    metavar="FILE",
    callback=lambda _context, _parameter, value: _summary_file(value),
    help="Write the final summary to FILE as JSON, and as text beside it, with the suffix .txt.",
)
@click.option(
    "--against",
    "against",
    metavar="SRC",
    help="Compare the digests of the job with those of SRC while it runs, and report differences.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print no summary at the end.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND …")
def run(
    directory: str | None,
    no_hooks: bool,
    command_args: bool,
    name: str | None,
    summary: str | None,
    against: str | None,
    quiet: bool,
    command: tuple[str, ...],
    **given: str | None,
) -> int:
    """Run COMMAND with all its training processes instrumented, in one trace; no code changes.

    The exit code and the streams are COMMAND's, and signals are forwarded to it. At the end, a
    summary of what the run spent its time on is printed on stderr.
    """
    variables = {
        _VARIABLE.format(option.upper()): value
        for option, value in given.items()
        if value is not None
    }
    options = _Options(command, not no_hooks, command_args, quiet, name, variables, summary)
    with contextlib.ExitStack() as stack:
        with signals_held() as held:
            watcher = None if against is None else _watcher(against, stack)
            job = _open_job(directory, options)
            job_report = None if job is None else _job_report(job, options)
            finding_metrics = None if job is None else _finding_metrics(job)
            environ = {**os.environ, **variables}
            if job is not None:
                environ = job.environment(environ, hooks=options.has_hooks)
                if watcher is not None:
                    watcher.follow(_batches(job))
            begun = time.monotonic_ns()
            problem = None
            try:
                code = Child(command, environ, held).wait()
            except NotStartedError as error:
                code, problem = error.code, str(error) + _hint(command)
        if problem is not None:
            output.error(problem)
            if job_report is not None:
                job_report.close()
                job_report = None
        took_ns = time.monotonic_ns() - begun
        if job is not None:
            try:
                _finish(job, options, code, took_ns, watcher, job_report, finding_metrics)
            except KeyboardInterrupt:
                output.message("interrupted: unsent batches stay in the spool")
            except Exception as error:  # the exit code is the command's, even if this fails
                output.message(f"the run cannot be summarized: {error}")
    return code


def _checked(name: str, text: str | None) -> str | None:
    """Check the value of a configuration option. Raises click.BadParameter."""
    from ...core.config.options import OPTIONS

    option = next(each for each in OPTIONS if each.name == name)
    try:
        if text is not None:
            option.key.parser.parse(text)
    except (ValueError, TypeError):
        raise click.BadParameter(f"{text!a:.60}: expected {option.key.parser.expected}") from None
    return text


def _summary_file(path: str | None) -> str | None:
    """Check the value of `--summary`. Raises click.BadParameter."""
    if path is None:
        return None
    if path in ("", "-") or Path(path).suffix == ".txt" or Path(path).is_dir():
        raise click.BadParameter(
            f"{path!a:.200}: expected the name of a JSON file; the text is written beside it"
        )
    return path


def _hint(command: tuple[str, ...]) -> str:
    """Return advice on how to run a script that is not an executable command."""
    script = command[0]
    if not script.endswith(".py") or not Path(script).is_file():
        return ""
    return f"; to run a script: cirron-otel run -- python {shlex.join(command)}"


def _resolved(directory: str | None, name: str | None) -> Resolved:
    from ...core.config.resolve import resolve

    options = {"output_dir": directory, "run_name": name}
    resolved = resolve({key: value for key, value in options.items() if value is not None})
    for problem in resolved.problems:
        output.message(problem)
    return resolved


def _open_job(directory: str | None, options: _Options) -> Job | None:
    """Open the job's span; return None if that fails. The command runs in any case."""
    from ...sdk.session.job import open_job

    try:
        config = _resolved(directory, options.name).config
        if not config.enabled:
            output.message("tracing is switched off: the command runs untraced")
            return None
        return open_job(config, os.environ, _attributes(options), options.command)
    except Exception as error:
        output.message(f"the command runs untraced: {error}")
        return None


def _attributes(options: _Options) -> dict[str, Any]:
    """Return OpenTelemetry's attributes of the command."""
    shown = redacted(options.command)
    attributes: dict[str, Any] = {
        "process.command": shown[0],
        "process.command_line": shlex.join(shown)[:_MOST],
    }
    if options.has_arguments:
        attributes["process.command_args"] = shown
    return attributes


def _finish(
    job: Job,
    options: _Options,
    code: int,
    took_ns: int,
    watcher: Watcher | None,
    job_report: JobReport | None,
    finding_metrics: FindingMetrics | None,
) -> None:
    """Close the open scopes of dead ranks, end the job's span, send batches, and print a
    summary unless `job_report` is None.
    """
    from ...core.spool.recovery import recover
    from .spool import damages

    batches = _batches(job)
    recovered = recover(job.paths)
    damages(recovered)
    died = batches.died(recovered)
    kills = max([job.oom_kills, *(each.oom_kills for each in died)])
    size = batches.world_size()
    job.end(code, {} if size is None else {"world_size": size}, job.exit_timeout)
    if watcher is not None:
        watcher.finish(is_quiet=options.is_quiet)
    if finding_metrics is not None:
        finding_metrics.finish()
    targets = _send_rest(job) if job.exporters else []
    if job_report is None:
        return
    found = job_report.result() if job.is_spooled and job.paths.spool.is_dir() else None
    if found is not None:
        found.write(job.paths)
    if options.summary is not None:
        _write_summary(job, options, code, took_ns, found)
    if options.is_quiet:
        return
    if died:
        who = count(len(died), "process", "processes")
        output.message(f"{who} died: the open scopes were closed as incomplete")
    if kills:
        output.message(
            f"out of memory: the kernel killed {count(kills, 'process', 'processes')} of this"
            " cgroup (oom_kill) while the command ran"
        )
    ended = (
        f"exit code {code}" if code <= BY_SIGNAL else f"exit code {code}, as after {_name(code)}"
    )
    output.message(f"{printable(options.command[0])}: {ended} after {duration(took_ns)}")
    _show(job, found, targets)


def _watcher(against: str, stack: contextlib.ExitStack) -> Watcher:
    """Return the comparison with a reference, which has been read. Raises the errors of that."""
    from .against import Watcher

    watcher = Watcher(against)
    watcher.load()
    stack.callback(watcher.close)
    return watcher


def _batches(job: Job) -> RunBatches:
    from .run_summary import RunBatches

    return RunBatches(job.paths, job.held, job.trace_id, job.owner, job.run.id, job.run.name)


def _job_report(job: Job, options: _Options) -> JobReport | None:
    """Begin to read the batches of a job; None if there will be no summary."""
    from .job_report import JobReport

    if options.is_quiet and options.summary is None:
        return None
    return JobReport(_batches(job))


def _finding_metrics(job: Job) -> FindingMetrics | None:
    """Begin to send the findings on a job as metrics, if it sends metrics."""
    from .finding_metrics import finding_metrics_of

    return finding_metrics_of(job, os.environ)


def _write_summary(
    job: Job, options: _Options, code: int, took_ns: int, found: ConcludedRun | None
) -> None:
    """Write the final summary; report an error, because the exit code is the command's."""
    from .final_summary import FinalSummary

    if found is None:
        output.message(f"{options.summary} is not written: there is no spool")
        return
    command = printable(options.command[0])
    summary = FinalSummary(command, code, took_ns, job.trace_id, found.document)
    try:
        files = summary.write(Path(options.summary or ""))
    except CirronOtelError as error:
        output.message(f"the summary is not written: {error}")
    else:
        if not options.is_quiet:
            output.message(f"the summary is in {' and '.join(map(str, files))}")


def _name(code: int) -> str:
    """Return the name of the signal that an exit code represents."""
    try:
        return signal.Signals(code - BY_SIGNAL).name
    except ValueError:
        return f"signal {code - BY_SIGNAL}"


def _send_rest(job: Job) -> list[TargetReport]:
    """Send the remaining batches: those of ranks that died, and those not sent in time."""
    from ..convert.flush import flush

    stop = threading.Event()
    with signals.stopping(stop):
        report = flush(
            str(job.paths.root), environ=os.environ, stop=stop, say=lambda _: None,
            patience=_PATIENCE_S,
        )  # fmt: skip
    return report.targets


def _show(job: Job, found: ConcludedRun | None, targets: list[TargetReport]) -> None:
    from .run_summary import places, show_conclusion

    spans = None if found is None else found.spans

    if not job.is_spooled:
        output.message("no spool is written (option output), so there is no summary")
    elif found is None:
        output.message(f"no spool could be written in {printable(str(job.paths.root))}")
    elif spans:
        show_conclusion(found)
    else:
        output.message(
            "the command recorded nothing in this trace: it neither trained with a framework"
            " that is hooked nor opened a scope, or runs a Python without cirron-otel, or with"
            " -E, -I or -S, or has options of its own (output, join)"
        )
    for line in places(job.paths.spool, job.trace_id, spans, targets):
        output.message(line)
