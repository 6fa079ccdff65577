"""Hidden frames in every supported version of Python that this machine has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cirron_otel.sdk.tracing import hidden_frames
from tests.conftest import leave_out
from tests.system.pythons.interpreters import find, supported

PROGRAM = Path(__file__).with_name("hidden_frames_program.py")


@pytest.mark.parametrize("version", supported())
def test_warnings_log_records_and_tracebacks_are_those_without_a_wrapper(version: str) -> None:
    interpreter = find(version)
    if interpreter is None:
        leave_out(f"Python {version} is not on this machine")
    command = [interpreter.path, PROGRAM, hidden_frames.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr
