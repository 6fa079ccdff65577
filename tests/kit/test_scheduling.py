"""Each test runs, also if a worker ends in the middle of a group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .sessions.processes import ROOT

CONFTEST = """
from tests.kit.scheduling import GroupScheduling

def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
"""
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(12))
def test_alone(number):
    note(f"alone {number}")

@pytest.mark.xdist_group("group")
@pytest.mark.parametrize("number", range(6))
def test_group(number):
    note(f"group {number}")
    if number == 3 and not os.path.exists("ended"):
        open("ended", "w").close()
        os._exit(1)

def note(line):
    with open("notes", "a") as file:
        file.write(line + os.linesep)
"""


def test_no_test_is_left_out_or_repeated_if_a_worker_dies(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p",
               "no:cacheprovider", "--rootdir", ".", "."]  # fmt: skip
    # The options and the worker of the run around it are not its own.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert "1 failed, 18 passed" in done.stdout, done.stdout
    notes = (tmp_path / "notes").read_text().splitlines()
    every = [f"alone {n}" for n in range(12)] + [f"group {n}" for n in range(6)]
    # pytest-xdist repeats the test in which the worker has ended.
    assert sorted(notes) == sorted([*every, "group 3"])
