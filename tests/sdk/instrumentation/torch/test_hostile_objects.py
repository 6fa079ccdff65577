"""An error inside the hooks, whatever its cause, never reaches the training loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.forked_scripts import ForkedScripts

from .programs import PROGRAMS
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


@pytest.fixture(scope="module")
def hostile_runs(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return scripts.result(PROGRAMS / "hostile_objects.py", tmp_path_factory.mktemp("hostile"))


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


def test_whatever_raises_inside_the_hooks(scripts: ForkedScripts, tmp_path: Path) -> None:
    """Each of their functions, early and late: counted, and the next loops are right again."""
    found = scripts.result(PROGRAMS / "faulty_hooks.py", tmp_path)
    assert found["wrong"] == {}
    called = set(found["called"])
    assert len(called) > 50
    assert {
        "Tracker.before_fetch",
        "Iteration.close",
        "LoaderlessSteps.step",
        "Modules._discover",
    } <= called
    assert {"open_phases.begin", "open_phases.leave", "Phase.finish", "Steps.turn_over"} <= called
