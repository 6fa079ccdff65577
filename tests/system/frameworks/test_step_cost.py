"""A trainer's step executes hardly more of the hooks' code than the same step written out.

`make bench` measures the times. This test counts instructions, which do not depend on the machine.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache

import pytest

from tests.conftest import leave_out, need_torch
from tests.kit.sessions.processes import ROOT, environment

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("step cost")]
MOST = 1.2
"""The most instructions of a step, as a multiple of those of the written-out step."""
IMPORTS = {"transformers": "transformers.trainer", "lightning": "lightning"}
WRITTEN_OUT = "written out"


def _is_installed(trainer: str) -> bool:
    return importlib.util.find_spec(trainer) is not None


@cache
def _counts() -> dict[str, float]:
    """Return the instructions of a step of each program that can run here."""
    programs = [f"{name}={module}" for name, module in IMPORTS.items() if _is_installed(name)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.frameworks.step_bytecode", WRITTEN_OUT, *programs],
        cwd=ROOT,
        env=environment(
            CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT)
        ),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = re.findall(r"^([\w ]+): ([\d.]+)$", done.stdout, re.MULTILINE)
    assert len(found) == 1 + len(programs), done.stderr[-3000:]
    return {name: float(count) for name, count in found}


@pytest.mark.parametrize("trainer", IMPORTS)
def test_a_step_executes_little_more_than_a_written_out_one(trainer: str) -> None:
    need_torch()
    if not _is_installed(trainer):
        leave_out(f"{trainer} is not installed here")
    counts = _counts()
    assert counts[trainer] <= MOST * counts[WRITTEN_OUT]
