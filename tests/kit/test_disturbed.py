"""Commands on a machine that is disturbed on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEES_A_STOPPED_PROCESS = """
import pathlib, subprocess, sys, time
children = [subprocess.Popen(["sleep", "600"]) for _ in range(20)]
states = [pathlib.Path(f"/proc/{each.pid}/stat") for each in children]
while not any(") T " in each.read_text() for each in states):
    time.sleep(0.001)
while any(") T " in each.read_text() for each in states):
    time.sleep(0.001)
for each in children:
    each.terminate()
print(sorted({each.wait() for each in children}))
sys.exit(7)
"""
COUNTS_ITS_SIBLINGS = """
import os, pathlib
parent = os.getppid()
children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
lines = [pathlib.Path(f"/proc/{each}/cmdline").read_text() for each in children]
print(sum(each.endswith("while True: pass\\0") for each in lines))
"""


def disturbed(kind: str, program: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tests.kit.disturbed", kind, sys.executable, "-c", program]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"CIRRON_OTEL_SEED": "1"},
    )  # fmt: skip


def test_processes_of_a_command_are_stopped_and_go_on() -> None:
    done = disturbed("paused", SEES_A_STOPPED_PROCESS)
    assert (done.returncode, done.stdout) == (7, "[-15]\n")
    assert done.stderr.startswith("disturbed: seed 1\n")


def test_a_process_for_each_core_is_busy_while_the_command_runs() -> None:
    done = disturbed("busy", COUNTS_ITS_SIBLINGS)
    assert (done.returncode, done.stdout) == (0, f"{os.cpu_count()}\n")


@pytest.mark.parametrize("words", [[], ["busy"], ["asleep", "true"]])
def test_without_a_kind_and_a_command_it_prints_how_it_is_used(words: list[str]) -> None:
    command = [sys.executable, "-m", "tests.kit.disturbed", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "COMMAND" in done.stderr
