"""DGRR traces: the commands that read them, their training, and their conversions both ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .command_line import (
    CommandLine,
    Output,
    content,
    fresh,
)
from .conversions import WORK

_COMMANDS = (
    ("verify", "{}"),
    ("inspect", "--step", "1", "--trace", "{}"),
    ("replay", "--step", "all", "--trace", "{}"),
    ("rollback", "--step", "1", "--trace", "{}", "--out", f"{WORK}/before.dgrr"),
    ("compare", "--a", "{reference}", "--b", "{}"),
)
_REFERENCE = "clean_100.dgrr"


def outputs(cli: CommandLine, corpus: Path) -> Iterator[Output]:
    """Run every command on every trace, with and without `--json`."""
    places = {"reference": str(corpus / "traces" / _REFERENCE)}
    for path in sorted((corpus / "traces").iterdir()):
        for command in _COMMANDS:
            arguments = [each.format(path, **places) for each in command]
            for options in ((), ("--json",)):
                name = " ".join(("dgrr", command[0], path.name, *options))
                with fresh(WORK):
                    yield from cli.outputs(name, "dgrr", *arguments, *options)
                    yield f"{name} | file", content(WORK / "before.dgrr")
        yield from _converted(cli, path)
    with fresh(WORK):
        training = ("train", "--steps", "200", "--seed", str(2**64 - 1))
        yield from cli.outputs("dgrr train", "dgrr", *training, "--out", f"{WORK}/trained.dgrr")
        data = content(WORK / "trained.dgrr")
        yield "dgrr train | file", data[:40] + data[48:]  # without the time


def _converted(cli: CommandLine, path: Path) -> Iterator[Output]:
    name = f"convert {path.name}"
    with fresh(WORK):
        yield from cli.outputs(name, "convert", f"dgrr:{path}", f"{WORK}/spool", "--json")
        yield f"{name} | spool", content(WORK / "spool")
        cli.run("convert", f"{WORK}/spool", f"dgrr:{WORK}/back.dgrr")
        yield f"{name} | back", content(WORK / "back.dgrr")
