"""The wall clock is stepped back by an hour while a process records."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.kit.sessions.processes import PROGRAMS, run
from tests.kit.sessions.whole import batch_files, whole

HOUR_NS = 3600 * 10**9


@pytest.fixture(params=["of the C library", "of Python"])
def clock(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment in which a process's clock can be stepped."""
    if request.param == "of Python":
        return {}
    compiler = shutil.which("cc")
    if compiler is None:
        leave_out("there is no C compiler here")
    library = tmp_path / "stepped.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, PROGRAMS / "stepped.c"], check=True
    )
    return {"LD_PRELOAD": str(library), "STEPPED_BACK": str(tmp_path / "stepped back")}


def test_clock_step_back_yields_no_negative_duration_and_ordered_batches(
    tmp_path: Path, clock: dict[str, str]
) -> None:
    directory = tmp_path / ".cirron"
    done = run("stepped", directory, env=clock)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) > HOUR_NS - 60 * 10**9
    found = whole(directory)
    assert found.numbers() == list(range(150))
    assert len(found.sessions) == 2
    steps = sorted(
        (s for s in found.spans.values() if s["name"] == "step"), key=lambda s: s["index"]
    )
    for earlier, later in itertools.pairwise(steps):
        assert earlier["start_ns"] <= earlier["end_ns"] <= later["start_ns"]
    for step in steps:
        (event,) = step["otel"]["events"]
        assert step["start_ns"] <= event["time_ns"] <= step["end_ns"]
    sealed = [json.loads(path.read_bytes()) for path in batch_files(directory)]
    order = [mark["value"] for b in sealed for mark in b["marks"] if mark["name"] == "number"]
    assert order == sorted(order)
    times = [batch["created_ns"] for batch in sealed]
    assert times == sorted(set(times))
