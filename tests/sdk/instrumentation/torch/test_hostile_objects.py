"""An error inside the hooks, whatever its cause, never reaches the training loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions.processes import ROOT, environment

from .programs.hostile_objects import CASES

WHOLE = {"cirron.session": 1, "epoch": 2, "step": 8, "data_load": 8, "forward": 8, "loss": 8,
         "backward": 8, "zero_grad": 8, "optimizer_step": 8}  # fmt: skip
DIFFERS: dict[str, dict[str, int]] = {
    "NoWeakReference": {"epoch": 0, "data_load": 0},
    "Duck": {"optimizer_step": 0, "zero_grad": 0},
}
"""What is in no place to be seen."""
COUNTED = {"NoParameters", "NoHash", "NoMode"}
"""Where hooks are kept from what they need: errors are counted, and some scopes are not there."""


def run(program: str, directory: Path) -> Any:
    """What a program of `programs/` prints."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            f"tests.sdk.instrumentation.torch.programs.{program}",
            str(directory),
        ],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def hostile_runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run("hostile_objects", tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_object_trains_as_without_tracing(hostile_runs: Any, case: str) -> None:
    found = hostile_runs[case]
    assert found["traced"] == found["losses"]
    assert len(found["losses"]) == 8
    if case in COUNTED:
        assert found["errors"]["torch"]
        assert {"cirron.session", "step", "backward", "optimizer_step"} <= set(found["names"])
    else:
        assert found["errors"] == {}
        wanted = {**WHOLE, **DIFFERS.get(case, {})}
        assert found["names"] == {name: count for name, count in wanted.items() if count}


def test_whatever_raises_inside_the_hooks(tmp_path: Path) -> None:
    """Each of their functions, early and late: counted, and the next loops are right again."""
    found = run("faulty_hooks", tmp_path)
    assert found["wrong"] == {}
    called = set(found["called"])
    assert len(called) > 50
    assert {
        "Tracker.before_fetch",
        "Iteration.close",
        "LoaderlessSteps.step",
        "Modules._discover",
    } <= called
    assert {"tracker.begin", "tracker.leave", "Phase.finish", "Steps.turn_over"} <= called
