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
IMPORTS = {"transformers": ("transformers.trainer",), "lightning": ("lightning",)}


@cache
def _instructions(program: str) -> float:
    command = [sys.executable, "-m", "tests.system.frameworks.step_bytecode", program]
    done = subprocess.run(
        [*command, *IMPORTS.get(program, ())],
        cwd=ROOT,
        env=environment(
            CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT)
        ),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = re.search(rf"^{program}: ([\d.]+)$", done.stdout, re.MULTILINE)
    assert found, done.stderr[-3000:]
    return float(found[1])


@pytest.mark.parametrize("trainer", IMPORTS)
def test_a_step_executes_little_more_than_a_written_out_one(trainer: str) -> None:
    need_torch()
    if importlib.util.find_spec(trainer) is None:
        leave_out(f"{trainer} is not installed here")
    assert _instructions(trainer) <= MOST * _instructions("written out")
