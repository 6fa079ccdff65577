"""Recordings that the real releases of Stormlog make in the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import leave_out
from tests.kit.environments import EnvironmentUnavailableError

from .peers import STORMLOG

PROGRAM = Path(__file__).parent / "programs" / "recording.py"
KINDS = ("cpu", "killed", "recovered", "torchrun", "oom", "diagnose")
_KILLED = -9


def record(version: str, folder: Path) -> dict[str, Path]:
    """Record everything with one release; return the recordings by kind."""
    python = _python(version)
    places = {kind: folder / kind for kind in KINDS}
    for kind in ("cpu", "killed", "oom"):
        places[kind].mkdir(parents=True)
        _run(python, PROGRAM, kind, places[kind], expected=_KILLED if kind == "killed" else 0)
    shutil.copytree(places["killed"], places["recovered"])
    _run(python, PROGRAM, "again", places["recovered"])
    places["torchrun"].mkdir()
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    _run(python, *launcher, PROGRAM, "again", places["torchrun"])
    command = ("diagnose", "--duration", "0.5", "--interval", "0.1", "--output", "bundle")
    places["diagnose"].mkdir()
    _run(python.with_name("gpumemprof"), *command, folder=places["diagnose"])
    places["diagnose"] = next(
        path.parent for path in places["diagnose"].rglob("telemetry_timeline.json")
    )
    return places


def _python(version: str) -> Path:
    try:
        return STORMLOG[f"stormlog-{version}"].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))


def _run(*command: object, expected: int = 0, folder: Path | None = None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, cwd=folder, env=environment,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == expected, done.stderr


@contextmanager
def own_run(folder: Path, mode: str = "sampled") -> Iterator[Path]:
    """A spool of our own SDK, with or without samples of memory."""
    program = Path(__file__).parent / "programs" / "remembering.py"
    _run(sys.executable, program, folder, mode)
    yield folder
