"""Completion of command lines in bash, zsh and fish. The shell runs the command for each Tab
key.
"""

from __future__ import annotations

from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from ...core.spool.directories import DEFAULT_NAME
from ...errors import CirronOtelError

_FILES = frozenset({"SRC", "[SRC]", "DST", "DIR", "[DIR]", "FILE", "A", "B"})
"""The metavars of parameters whose values are paths."""
_SOURCES = ("source", "directory", "first")
"""The parameters that identify the spool whose runs are offered as values of `--run`."""


def complete(cli: click.Group, program: str, arguments: list[str]) -> NoReturn:
    """Print the completions for the shell, and exit."""
    _prepare(cli)
    cli.main(arguments, prog_name=program)
    raise SystemExit(0)


def _prepare(command: click.Command) -> None:
    """Give path parameters and `--run` the types that complete file names and run names.

    In a real call these parameters are strings, because some of them also accept URLs.
    """
    for parameter in command.params:
        if parameter.metavar in _FILES:
            parameter.type = click.Path()
        elif "--run" in parameter.opts:
            parameter.type = _RunName()
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                _prepare(below)


class _RunName(click.ParamType):  # type: ignore[type-arg]
    """The name of a run in the spool that is given on the command line."""

    name = "run"

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click passes it
        incomplete: str,
    ) -> list[CompletionItem]:
        """List the runs of the spool, the latest first, with `last` and `all`."""
        from ...core.analysis.runs import read_runs  # noqa: PLC0415 - needed only for this option
        from ...core.spool.reader import SpoolReader  # noqa: PLC0415 - only for this option

        # Parsing ends at `--run` without a value, before the preceding words are assigned.
        words = (*ctx.args, *(ctx.params.get(name) for name in _SOURCES))
        place = next((each for each in words if isinstance(each, str)), DEFAULT_NAME)
        try:
            names = [run.name for run in reversed(read_runs(SpoolReader(place)).runs)]
        except (CirronOtelError, OSError):
            names = []
        texts = dict.fromkeys([*names, "last", "all"])
        return [CompletionItem(text) for text in texts if text.startswith(incomplete)]
