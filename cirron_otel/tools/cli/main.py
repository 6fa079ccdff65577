"""The command `cirron-otel`: its subcommands, and the handling of errors and signals.

Each kind of outcome has its own exit code (docs/cli.md, "Exit codes"), and each error is reported
in one line.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from ...errors import CirronOtelError, TargetError, UsageError
from . import output, signals, starting

PROGRAM = "cirron-otel"
INTERRUPTED = 130
COMMANDS = frozenset({
    "run", "convert", "export", "report", "diagnose", "diff", "runs", "spool", "stormlog", "dgrr",
    "demo", "doctor", "collector",
})  # fmt: skip
"""The subcommands. Each is a function in the module with its name."""
_COMPLETE = "_CIRRON_OTEL_COMPLETE"
"""Set by the shell: `bash_source` requests its script, `bash_complete` the completions."""
_DEBUG = "CIRRON_OTEL_DEBUG"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


class _Commands(click.Group):
    """A group that imports a command when it is first used, so that commands start faster."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click passes it
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module = importlib.import_module(f".{cmd_name}", __package__)
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 done, but something was skipped; 2 wrong usage; 3 bad input;"
    " 4 target not writable; 5 endpoint failed; 6 a finding of --fail-on;"
    " 7 collector: batches undelivered;"
    " 130 interrupted.",
)
@click.version_option(package_name=PROGRAM, message=f"{PROGRAM} %(version)s")
def cli() -> None:
    """Convert Cirron's training traces to OpenTelemetry and back, losing nothing."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (`sys.argv` by default), and exit with its exit code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error is reported as one line on stderr."""
    output.prepare()
    try:
        _import_command(arguments)
        starting.restore()
        with signals.terminating(arguments):
            code = _invoke(arguments)
            output.flush()
            return code
    except click.UsageError as error:
        return _wrong_usage(error)
    except CirronOtelError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            output.give_up()  # the process that reads stdout has ended
        else:
            output.error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        output.message("interrupted")
        return INTERRUPTED
    except Exception as error:
        if _is_after_interrupt(error):
            output.message("interrupted")
            return INTERRUPTED
        return _unwritable(error) or _internal(error)


def _import_command(arguments: list[str]) -> None:
    """Import the command that is named first, while Ctrl-C still ends the process at once."""
    if (name := next((each for each in arguments if each in COMMANDS), None)) is not None:
        cli.get_command(click.Context(cli), name)


def _invoke(arguments: list[str]) -> int:
    """Call the command and return its exit code.

    Click's own `main` is not used, because it prints an empty line on Ctrl-C.
    """
    if _COMPLETE in os.environ:
        from . import completion  # noqa: PLC0415 - needed only for shell completion

        completion.complete(cli, PROGRAM, arguments)
    try:
        with cli.make_context(PROGRAM, arguments) as context:
            return cli.invoke(context) or 0
    except click.exceptions.Exit as error:
        return error.exit_code


def _wrong_usage(error: click.UsageError) -> int:
    context = error.ctx
    path = PROGRAM if context is None else context.command_path
    no_arguments = getattr(click.exceptions, "NoArgsIsHelpError", None)
    if no_arguments is not None and isinstance(error, no_arguments):
        output.message_block(error.format_message())
    else:
        output.error(f"{error.format_message().rstrip('.')}: see `{path} --help`")
    return _usage_exit_code(context)


def _usage_exit_code(context: click.Context | None) -> int:
    """Return the exit code of wrong usage: that of the innermost group that has its own."""
    while context is not None:
        code = getattr(context.command, "usage_exit_code", None)
        if code is not None:
            return int(code)
        context = context.parent
    return UsageError.exit_code


def _is_after_interrupt(error: BaseException) -> bool:
    """Return whether this error occurred while Ctrl-C was being handled."""
    cause = error.__context__
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__context__
    return False


def _unwritable(error: Exception) -> int:
    """Report a failed write that no caller handled, and return its exit code; 0 for other errors.

    Writes of temporary files are included.
    """
    import sqlite3  # noqa: PLC0415 - needed only after an error

    code = TargetError.exit_code
    if isinstance(error, BrokenPipeError):
        output.give_up()
    elif isinstance(error, OSError) and error.errno is not None:
        is_full = error.errno in _FULL
        if is_full:
            output.give_up()
        where = f" {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        what = f"write{where}" if is_full else f"use{where}" if where else "continue"
        output.error(f"cannot {what}: {error.strerror}" + "; free some space" * is_full)
    elif isinstance(error, sqlite3.OperationalError):
        output.error(
            f"cannot use a temporary database: {error}; free some space, or set TMPDIR to"
            " another directory"
        )
    else:
        code = 0
    return code


def _internal(error: Exception) -> int:
    if os.environ.get(_DEBUG) == "1":
        traceback.print_exc()
    else:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        output.message(f"internal error: {what}; please report it ({_DEBUG}=1 shows where)")
    return 1
