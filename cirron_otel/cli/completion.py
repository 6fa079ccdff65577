"""Completion of command lines in bash, zsh and fish, which call the command for each Tab."""

from __future__ import annotations

from typing import NoReturn

import click

VARIABLE = "_CIRRON_OTEL_COMPLETE"
"""The shell sets it to `bash_source` for its script, and to `bash_complete` for a Tab."""
_FILES = frozenset({"SRC", "[SRC]", "DST", "DIR", "[DIR]", "FILE", "A", "B"})
"""The metavars of parameters whose values are paths."""


def complete(cli: click.Group, program: str, arguments: list[str]) -> NoReturn:
    """Answer the shell, and exit."""
    _complete_files(cli)
    cli.main(arguments, prog_name=program)
    raise SystemExit(0)


def _complete_files(command: click.Command) -> None:
    """Let the shell complete file names for the parameters that are paths.

    Their type is text in a real call, because some of them take addresses, too.
    """
    for parameter in command.params:
        if parameter.metavar in _FILES:
            parameter.type = click.Path()
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _complete_files(below)
