"""The hooks into Lightning when something breaks, and the traces that they must not leave."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.processes import ROOT, environment

_SOURCE = Path(__file__).with_name("lightning_checks.py")
CHECKS = [
    node.name
    for node in ast.parse(_SOURCE.read_text()).body
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(each, ast.Name) and each.id == "check" for each in node.decorator_list)
]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The faults that each check found; they run in one process, which imports Lightning once."""
    command = [sys.executable, "-m", "tests.frameworks.lightning_checks"]
    done = subprocess.run(
        [*command, str(tmp_path_factory.mktemp("checks"))],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_hooks_never_disturb_a_run(name: str, faults: dict[str, list[str]]) -> None:
    assert faults[name] == []
