"""The documents of recorded and generated spools, and of the recordings of other tools."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from .command_line import (
    CommandLine,
    Output,
    content,
    fresh,
)
from .conversions import WORK

_OF_EVERY_RECORDING = (("report",), ("diagnose",), ("runs", "report"))
_OF_SPOOLS = (
    *_OF_EVERY_RECORDING,
    ("diff",),
    ("runs", "ls"),
    ("spool", "ls"),
    ("spool", "show"),
    ("spool", "verify"),
)
"""Commands that read one source and have `--json`."""
_NOW_NS = 1_795_284_134_000_000_000
"""The time of the commands: a day after the generated spools begin."""


def outputs(cli: CommandLine, corpus: Path) -> Iterator[Output]:
    """Run every command on every recording, and compare each spool with the next one."""
    spools = [
        path
        for folder in ("spools", "runs")
        for path in sorted((corpus / folder).iterdir())
        if path.is_dir()
    ]
    with _frozen_clock():
        for spool in spools:
            yield from _documents(cli, _OF_SPOOLS, str(spool))
            folded = ("spool", "show", str(spool), "--fold")
            yield from cli.outputs(f"spool show {spool.name} --fold", *folded)
        for first, second in itertools.pairwise(spools):
            for options in ((), ("--json",)):
                name = " ".join(("diff", first.name, second.name, *options))
                yield from cli.outputs(name, "diff", str(first), str(second), *options)
        for source in _recordings(corpus):
            yield from _documents(cli, _OF_EVERY_RECORDING, source)


def _recordings(corpus: Path) -> Iterator[str]:
    """Yield the recordings of other tools, as sources of the command line."""
    for folder in sorted((corpus / "recordings").iterdir()):
        for path in sorted(folder.iterdir()):
            yield f"{folder.name}:{path}"
    for path in sorted((corpus / "traces").iterdir()):
        yield f"dgrr:{path}"


def _documents(
    cli: CommandLine, commands: tuple[tuple[str, ...], ...], source: str
) -> Iterator[Output]:
    shown = Path(source).name
    for command in commands:
        for options in ((), ("--json",)):
            name = " ".join((*command, shown, *options))
            yield from cli.outputs(name, *command, source, *options)
    with fresh(WORK):
        page, steps = str(WORK / "page.html"), str(WORK / "steps.csv")
        yield from cli.outputs(f"report {shown} --html", "report", source, "--html", page)
        yield f"report {shown} --html | file", content(Path(page))
        yield from cli.outputs(f"steps {shown}", "convert", source, steps)
        yield f"steps {shown} | file", content(Path(steps))


@contextlib.contextmanager
def _frozen_clock() -> Iterator[None]:
    """Freeze the clock: a document may depend on the current time."""
    clocks = time.time, time.time_ns
    time.time = lambda: _NOW_NS / 1e9
    time.time_ns = lambda: _NOW_NS
    try:
        yield
    finally:
        time.time, time.time_ns = clocks
