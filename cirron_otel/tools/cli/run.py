"""`cirron-otel run`: trace a training job from outside.

The job runs as a child process, and signals are forwarded to it (`Child`). At the end, the open
scopes of dead processes are closed, unsent batches are sent, and a summary is printed.
"""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...errors import CirronOtelError
from ...sdk.session.redaction import redacted
from . import output, signals
from .text import count, duration, printable

if TYPE_CHECKING:
    from ...core.analysis.run_report import RunReport
    from ...core.config.resolve import Resolved
    from ...sdk.session.job import Job
    from ..convert.flush import TargetReport
    from .run_summary import RunBatches


NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128
"""The exit codes that a shell returns in these cases (POSIX, XCU 2.8.2)."""

_PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGTSTP,
)  # fmt: skip
_AWAITED = (*_PASSED_ON, signal.SIGCHLD)
# Signals that Python ignores from startup. The default handling is restored for the child, as
# `subprocess` does.
_RESTORED = [
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ") if hasattr(signal, name)
]
_BY_KERNEL = 0x80
"""`si_code` of a signal from the terminal rather than from a process (sigaction(2), SI_KERNEL)."""


class NotStartedError(Exception):
    """The command cannot be started; `code` is the exit code that a shell would return."""

    def __init__(self, command: str, error: OSError) -> None:
        """`error` is the OSError that was raised when the command was started."""
        self.code = NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE
        reason = "no such command" if self.code == NOT_FOUND else error.strerror or str(error)
        super().__init__(f"{command or '(no word)'}: {reason}")


@contextlib.contextmanager
def signals_held() -> Iterator[set[signal.Signals]]:
    """Hold back the signals meant for a child while the block runs; `Child.wait` receives them.

    Enter it before any thread is started. Yields the signals that were blocked before.
    """
    # If SIGCHLD is inherited as ignored, the kernel reaps the child, and its exit code is lost.
    chld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    try:
        yield {signal.Signals(each) for each in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if chld is not None:
            signal.signal(signal.SIGCHLD, chld)


class Child:
    """A running command.

    It uses our stdin, stdout and stderr. With a controlling terminal, it stays in our process
    group, like the child of a shell script: the terminal signals both processes. Without a
    terminal, it has its own process group, so that a signal sent to our group reaches it once,
    forwarded by us.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], held: set[signal.Signals]
    ) -> None:
        """Start the command within `signals_held`, which yielded `held`. Raises NotStartedError."""
        self._is_apart = not _has_terminal()
        options: dict[str, Any] = {"setpgroup": 0} if self._is_apart else {}
        if not command[0]:  # Python raises ValueError for an empty name
            raise NotStartedError("", FileNotFoundError(errno.ENOENT, ""))
        try:
            self.pid = os.posix_spawnp(
                command[0], list(command), dict(environ), setsigmask=held, setsigdef=_RESTORED,
                **options,
            )  # fmt: skip
        except OSError as error:
            raise NotStartedError(command[0], error) from None

    def wait(self) -> int:
        """Forward signals until the child ends, and return its exit code.

        The code is 128 + n if signal n ended the child.
        """
        while True:
            number, was_sent = _next_signal()
            if number == signal.SIGCHLD:
                code = self._ended()
                if code is not None:
                    return code
            elif number == signal.SIGTSTP:
                self._stop(was_sent)
            elif was_sent:
                self._send(number)

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid != self.pid:
            return None
        code = os.waitstatus_to_exitcode(status)
        # Discard signals that arrived at the same time: they were meant for the child, which has
        # ended.
        while signal.sigpending() & set(_AWAITED):
            signal.sigwait(_AWAITED)
        return code if code >= 0 else BY_SIGNAL - code

    def _stop(self, was_sent: bool) -> None:
        """Stop together with the child, and continue the child when we continue.

        A signal from the terminal is not forwarded, because the terminal sends it to the child too.
        """
        if was_sent:
            self._send(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if was_sent or self._is_stopped():
            self._send(signal.SIGCONT)

    def _is_stopped(self) -> bool:
        options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the child has just ended
            if self._is_apart:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def _next_signal() -> tuple[int, bool]:
    """Return the next signal, and whether it was sent by a process rather than by the terminal."""
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(_AWAITED)
        return info.si_signo, info.si_code != _BY_KERNEL
    number = signal.sigwait(_AWAITED)
    return number, number not in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


SAMPLE_INTERVAL = "CIRRON_SAMPLE_INTERVAL"
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
    sample_interval: str | None
    summary: str | None
    """The file for the final summary."""


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
@click.option(
    "--sample-interval",
    metavar="SECONDS",
    callback=lambda _context, _parameter, value: _sample_interval(value),
    help="The time between samples of memory, CPU and GPU; `none`: no samples. By default 1.",
)
@click.option(
    "--summary",
    "summary",
    metavar="FILE",
    callback=lambda _context, _parameter, value: _summary_file(value),
    help="Write the final summary to FILE as JSON, and as text beside it, with the suffix .txt.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print no summary at the end.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND …")
def run(
    directory: str | None,
    no_hooks: bool,
    command_args: bool,
    name: str | None,
    sample_interval: str | None,
    summary: str | None,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND with all its training processes instrumented, in one trace; no code changes.

    The exit code and the streams are COMMAND's, and signals are forwarded to it. At the end, a
    summary of what the run spent its time on is printed on stderr.
    """
    options = _Options(command, not no_hooks, command_args, quiet, name, sample_interval, summary)
    with signals_held() as held:
        job = _open_job(directory, options)
        environ = dict(os.environ)
        if sample_interval is not None:
            environ[SAMPLE_INTERVAL] = sample_interval
        if job is not None:
            environ = job.environment(environ, hooks=options.has_hooks)
        begun = time.monotonic_ns()
        problem = None
        try:
            code = Child(command, environ, held).wait()
        except NotStartedError as error:
            code, problem = error.code, str(error) + _hint(command)
    if problem is not None:
        output.error(problem)
    took_ns = time.monotonic_ns() - begun
    if job is not None:
        try:
            _finish(job, options, code, took_ns, is_started=problem is None)
        except KeyboardInterrupt:
            output.message("interrupted: unsent batches stay in the spool")
        except Exception as error:  # the exit code is the command's, even if the summary fails
            output.message(f"the run cannot be summarized: {error}")
    return code


def _sample_interval(text: str | None) -> str | None:
    """Check the value of `--sample-interval`. Raises click.BadParameter."""
    from ...core.config.options import OPTIONS

    option = next(each for each in OPTIONS if each.variable == SAMPLE_INTERVAL)
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
    job: Job, options: _Options, code: int, took_ns: int, *, is_started: bool = True
) -> None:
    """Close the open scopes of dead ranks, end the job's span, send batches, and print a
    summary.
    """
    from ...core.spool.recovery import recover
    from .run_summary import RunBatches

    batches = RunBatches(job.paths, job.held, job.trace_id, job.owner)
    died = batches.died(recover(job.paths))
    kills = max([job.oom_kills, *(each.oom_kills for each in died)])
    size = batches.world_size()
    job.end(code, {} if size is None else {"world_size": size}, job.exit_timeout)
    targets = _send_rest(job) if job.exporters else []
    if not is_started or (options.is_quiet and options.summary is None):
        return
    report = _report(job, batches)
    if options.summary is not None:
        _write_summary(job, options, code, took_ns, report)
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
    _show(job, report, targets)


def _report(job: Job, batches: RunBatches) -> RunReport | None:
    """Return the report of the run; None if it has no spool."""
    from .run_summary import report_of

    return report_of(batches) if job.is_spooled and job.paths.spool.is_dir() else None


def _write_summary(
    job: Job, options: _Options, code: int, took_ns: int, report: RunReport | None
) -> None:
    """Write the final summary; report an error, because the exit code is the command's."""
    from .final_summary import FinalSummary

    if report is None:
        output.message(f"{options.summary} is not written: there is no spool")
        return
    command = printable(options.command[0])
    summary = FinalSummary(command, code, took_ns, job.trace_id, report)
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


def _show(job: Job, report: RunReport | None, targets: list[TargetReport]) -> None:
    from .run_summary import places, show_report

    if not job.is_spooled:
        output.message("no spool is written (option output), so there is no summary")
    elif report is None:
        output.message(f"no spool could be written in {printable(str(job.paths.root))}")
    elif report.spans:
        show_report(report)
    else:
        output.message(
            "the command recorded nothing in this trace: it neither trained with a framework"
            " that is hooked nor opened a scope, or runs a Python without cirron-otel, or with"
            " -E, -I or -S, or has options of its own (output, join)"
        )
    for line in places(job.paths.spool, job.trace_id, report, targets):
        output.message(line)
