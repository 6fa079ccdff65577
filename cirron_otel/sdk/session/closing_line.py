"""The line on stderr at the end of a run: its name, its spool, and the command to show it.

The line is meant for a terminal. It is omitted if stderr is not a terminal, under `cirron-otel run`
(which prints a report), in pytest, in ranks other than 0, in forked and spawned children, and if
the session recorded nothing or has no spool. The option `quiet` overrides this.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from multiprocessing.process import parent_process
from pathlib import Path

from ...core.spool.directories import DEFAULT_NAME
from ...ids import SHORT_ID_DIGITS
from .errors import record_error
from .run_identity import RUN_ID_VARIABLE
from .runtime import Runtime


def show_closing_line(runtime: Runtime) -> None:
    """Write the line to stderr if it is wanted. Raises nothing."""
    try:
        if is_wanted(runtime, sys.modules):
            sys.stderr.write(closing_line(runtime) + "\n")
            sys.stderr.flush()
    except Exception as error:
        record_error("closing line", error)


def is_wanted(runtime: Runtime, modules: Mapping[str, object]) -> bool:
    """Return whether the line is shown at the end of this session."""
    quiet = runtime.config.quiet
    sealer = runtime.pipeline.sealer
    if quiet or sys.stderr is None or sealer.kind is None or not sealer.batches:
        return False
    if runtime.identity.rank != 0 or runtime.run.is_inherited or parent_process() is not None:
        return False
    if quiet is False:
        return True
    is_below_run = bool(runtime.environ.get(RUN_ID_VARIABLE))
    return not is_below_run and "_pytest" not in modules and sys.stderr.isatty()


def closing_line(runtime: Runtime) -> str:
    """Return the line: the run's name, its spool, and the command that reports it."""
    spool = _shown(runtime.paths.root)
    words = ["cirron-otel", "report"]
    if spool != DEFAULT_NAME:
        words.append(spool)
    words += ["--run", runtime.run.id[:SHORT_ID_DIGITS]]
    return f"cirron-otel: run {runtime.run.name} is in {spool}: {shlex.join(words)}"


def _shown(path: Path) -> str:
    """Return a path, relative to the working directory if it is inside it."""
    try:
        shown = str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        shown = str(path)
    return "".join(char if char.isprintable() else "?" for char in shown)
