"""`run --against`: a job is compared with a reference while it runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.sessions.processes import environment
from tests.tools.cli.run.running import command, run

PROGRAM = [sys.executable, str(Path(__file__).parent / "programs" / "digesting.py")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run."""
    folder = tmp_path_factory.mktemp("reference")
    assert run(folder, "--output", "first", "--quiet", "--", *PROGRAM).returncode == 0
    return folder / "first"


@pytest.fixture
def reference(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(recorded, tmp_path / "first"))


def test_the_first_difference_is_reported_at_once(reference: Path, tmp_path: Path) -> None:
    proceed = tmp_path / "proceed"
    words = command("--output", "second", "--against", "first", "--", *PROGRAM)
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(FAULT="12", PROCEED=str(proceed)),
        stderr=subprocess.PIPE, text=True,
    ) as job:  # fmt: skip
        assert job.stderr is not None
        lines = []
        for line in job.stderr:  # the job waits for the report
            lines.append(line.rstrip())
            if line.startswith("DIVERGED"):
                break
        proceed.touch()
        rest = job.stderr.read()
    assert job.returncode == 0
    assert lines[0] == "cirron-otel: the run differs from first (A):"
    assert lines[1] == "DIVERGED: step 12 of rank 0 (epoch 1, index 2), weights"
    assert rest.count("DIVERGED") == 1  # in the result at the end
    assert "compared with first:" in rest
    assert "18 of 30 compared steps differ" in rest


def test_an_identical_run(reference: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "--output", "second", "--against", "first", "--", *PROGRAM)
    assert done.returncode == 0
    assert "\nIDENTICAL: all 30 steps of 1 rank are equal\n" in done.stderr
    quiet = run(tmp_path, "--output", "third", "--quiet", "--against", "first", "--", *PROGRAM)
    assert quiet.stderr == ""


def test_a_run_without_digests_is_not_compared(reference: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "--output", "second", "--against", "first", "--", "true")
    assert done.returncode == 0
    assert "NOT COMPARED: B has no digests" in done.stderr


def test_a_reference_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "--against", "nowhere", "--", "touch", "started")
    assert done.returncode == 3
    assert "nowhere" in done.stderr
    empty = run(tmp_path, "--output", "empty", "--quiet", "--", "true")
    assert empty.returncode == 0
    done = run(tmp_path, "--against", "empty", "--", "touch", "started")
    assert done.returncode == 2
    assert "has no digests" in done.stderr
    assert not (tmp_path / "started").exists()
