"""Recordings of the real releases of Stormlog, and of our own SDK.

Stormlog records once, until a program, a pin or Python changes (tests/kit/references.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from cirron_otel.core.importers.stormlog import load_telemetry_sessions
from tests.conftest import leave_out
from tests.kit import references
from tests.kit.environments import EnvironmentUnavailableError

from .peers import STORMLOG

PROGRAM = Path(__file__).parent / "programs" / "recording.py"
SESSION_PROGRAM = PROGRAM.with_name("record_session.py")
KINDS = ("cpu", "killed", "recovered", "torchrun", "oom", "diagnose")
_KILLED = -9
_STATUSES = {
    "cpu": ["completed"], "killed": ["running"], "recovered": ["completed", "interrupted"],
    "torchrun": ["completed", "completed"], "oom": ["completed"], "diagnose": ["completed"],
}  # fmt: skip
"""The statuses of the sessions of each kind, the last session first."""
_SESSION_STATUSES = {
    "complete": ["completed"], "killed": ["running"], "recovered": ["completed", "interrupted"],
    "export": ["completed"], "bundle": ["completed"],
}  # fmt: skip
"""The same for the recordings of `record_sessions`."""


def record(version: str, folder: Path) -> dict[str, Path]:
    """Record everything with one release into a new folder; return the recordings by kind.

    A recording without the sessions that the tests expect is an error and is not stored.
    """
    python = _python(version)
    files = [PROGRAM, Path(__file__), STORMLOG[f"stormlog-{version}"].pins]
    key = references.key_of(files, "kinds", version)
    references.fill(folder, key, lambda place: _record(python, place))
    places = {kind: folder / kind for kind in KINDS}
    places["diagnose"] = next(
        path.parent for path in places["diagnose"].rglob("telemetry_timeline.json")
    )
    return places


def _record(python: Path, folder: Path) -> None:
    places = {kind: folder / kind for kind in KINDS}
    for kind in ("cpu", "killed", "oom"):
        places[kind].mkdir()
        _run(python, PROGRAM, kind, places[kind], expected=_KILLED if kind == "killed" else 0)
    shutil.copytree(places["killed"], places["recovered"])
    _run(python, PROGRAM, "again", places["recovered"])
    places["torchrun"].mkdir()
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    _run(python, *launcher, PROGRAM, "again", places["torchrun"])
    command = ("diagnose", "--duration", "0.5", "--interval", "0.1", "--output", "bundle")
    places["diagnose"].mkdir()
    _run(python.with_name("gpumemprof"), *command, folder=places["diagnose"])
    _check(folder, _STATUSES)
    ranks = [each.events[0].rank for each in load_telemetry_sessions(places["torchrun"])]
    assert sorted(ranks) == [0, 1]
    events = load_telemetry_sessions(places["oom"])[0].events
    contexts = ["Phase entered: too large", "OOM detected", "Phase exited: too large"]
    assert [each.context for each in events if each.context in contexts] == contexts


def _check(folder: Path, statuses: dict[str, list[str]]) -> None:
    """Check that the last session of each recording has events, and the statuses of all."""
    for name, expected in statuses.items():
        sessions = load_telemetry_sessions(folder / name)
        assert [each.summary.status for each in sessions] == expected, name
        assert sessions[0].events, name


def record_sessions(version: str, folder: Path) -> Path:
    """Record sessions of one release into a new folder, by the names of the tests of them.

    A recording without the sessions that the tests expect is an error and is not stored.
    """
    python = _python(version)
    files = [SESSION_PROGRAM, Path(__file__), STORMLOG[f"stormlog-{version}"].pins]
    key = references.key_of(files, "sessions", version)
    references.fill(folder, key, lambda place: _record_sessions(python, place))
    return folder


def _record_sessions(python: Path, folder: Path) -> None:
    _run(python, SESSION_PROGRAM, folder / "complete", "10")
    command = [python, SESSION_PROGRAM, folder / "killed", "3", "forever"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
    shutil.copytree(folder / "killed", folder / "recovered")
    _run(python, SESSION_PROGRAM, folder / "recovered", "10")
    program, export = python.with_name("gpumemprof"), folder / "export"
    export.mkdir()
    _run(
        program, "track", "--duration", "1", "--interval", "0.1", "--format", "json",
        "--output", "track.json", "--telemetry-sink-dir", "sink", folder=export,
    )  # fmt: skip
    command = ["diagnose", "--duration", "1", "--interval", "0.2", "--output", "bundle"]
    _run(program, *command, folder=folder)
    _check(folder, _SESSION_STATUSES)
    assert len(list(folder.glob("complete/segment-*.jsonl"))) > 1


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


def own_runs(folder: Path) -> tuple[Path, Path]:
    """Two spools of our own SDK, with and without samples of memory."""
    program = Path(__file__).parent / "programs" / "remembering.py"
    _run(sys.executable, program, folder)
    return folder / "sampled", folder / "unsampled"
