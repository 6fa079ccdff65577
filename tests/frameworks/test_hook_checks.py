"""The hooks into Accelerate and `generate` under faults, forks and other frameworks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.processes import ROOT, environment

_SOURCE = Path(__file__).with_name("hook_checks.py").read_text()
NAMES = re.findall(r"^@check\ndef (\w+)", _SOURCE, re.MULTILINE)


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.frameworks.hook_checks"],
        cwd=ROOT,
        env=environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    faults: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return faults


@pytest.mark.parametrize("name", NAMES)
def test_check(name: str, results: dict[str, str]) -> None:
    if results[name]:
        pytest.fail(results[name], pytrace=False)
