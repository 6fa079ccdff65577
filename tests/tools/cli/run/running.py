"""`cirron-otel run` as a process, and what it left in its spool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit.sessions.processes import environment
from tests.kit.sessions.spool_trees import Node, Spool, read_spool

BIN = Path(sys.executable).parent
COMMAND = str(BIN / "cirron-otel")
PROGRAMS = Path(__file__).parent / "programs"
JOB = "cirron.job"


def command(*arguments: object) -> list[str]:
    return [COMMAND, "run", *map(str, arguments)]


def program(name: str, *arguments: object) -> list[str]:
    """What starts one of the programs."""
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]


def run(
    directory: Path, *arguments: object, env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run `cirron-otel run` in `directory` to its end."""
    return start_to_end(command(*arguments), directory, env, **more)


def start_to_end(
    words: list[str], directory: Path, env: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    if any("ENDPOINT" in name for name in env or {}):
        env = {"CIRRON_EXIT_TIMEOUT": "120", **(env or {})}  # on a slow machine, too, all is sent
    done = subprocess.run(
        words, cwd=directory, env=environment(OMP_NUM_THREADS="1", **(env or {})),
        capture_output=True, text=True, timeout=300, check=False, **more,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def job_of(spool: Spool) -> Node:
    """The one job of a spool."""
    (job,) = [found for each in spool.roots for found in each.find(JOB)]
    return job


def others(spool: Spool) -> list[Node]:
    """The sessions that are no runner's."""
    return [each for each in spool.sessions if not each.find(JOB)]


def spool_of(directory: Path) -> Spool:
    return read_spool(directory / ".cirron")
