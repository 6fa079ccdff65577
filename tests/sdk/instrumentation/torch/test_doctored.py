"""A changed torch: parts that cannot be hooked are reported once, and the rest is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import leave_out
from tests.kit.forked_scripts import ForkedScripts

from .programs import PROGRAMS

WHOLE = {"cirron.session": 1, "epoch": 2, "step": 6, "data_load": 6, "forward": 12, "loss": 6,
         "backward": 6, "recompute": 12, "zero_grad": 6, "optimizer_step": 6}  # fmt: skip
"""Six of the forwards are a compiled function's."""
NO_COMPILE = {"forward": 6}
NO_CHECKPOINT = {"recompute": 0}
LOST: dict[str, tuple[str, dict[str, int]]] = {
    "nothing": ("", {}),
    "data_load": ("data_load", {"data_load": 0, "epoch": 0}),
    "autograd.grad": ("autograd.grad", {}),
    "recompute": ("recompute", NO_CHECKPOINT),
    "recompute without reentrance": ("recompute without reentrance", NO_CHECKPOINT),
    "graph task": ("recompute, recompute without reentrance", NO_CHECKPOINT),
    "tracing": ("", NO_COMPILE),
    "optimizer_step": ("optimizer_step", {"optimizer_step": 0}),
    "optimizer_step after": ("optimizer_step", {"optimizer_step": 0}),
    "skipped": ("skipped", {}),
    "compiled functions": ("compiled functions", NO_COMPILE),
    "compiled functions left alone": ("compiled functions", NO_COMPILE),
    "workers": ("workers", {}),
}
"""What is told of, and how many scopes there are then, where that differs. What torch itself cannot
do without the internal is no part of the loop."""


@pytest.fixture(scope="module")
def doctored_results(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return scripts.result(PROGRAMS / "doctored_torch.py", tmp_path_factory.mktemp("doctored"))


@pytest.mark.parametrize("case", LOST)
def test_one_internal_is_not_there(doctored_results: Any, case: str) -> None:
    if case not in doctored_results:
        assert case == "compiled functions", "torch 2.6 needs it for whatever it does"
        leave_out("this torch cannot do without")
    lost, differs = LOST[case]
    found = doctored_results[case]
    assert found["same"], "the losses are those without tracing"
    assert found["hooks"] == ["torch"]
    if case.startswith("optimizer_step"):
        # Whether gradients are accumulated cannot be told.
        differs = {**differs, "step": found["names"]["step"]}
        found["names"].pop("micro_step", None)
    names = {name: count for name, count in {**WHOLE, **differs}.items() if count}
    assert found["names"] == names
    assert found["skipped"] == 0
    assert found["errors"] == ({f"torch: {lost}": 1} if lost else {})
    assert len(found["said"]) == bool(lost)
    for said in found["said"]:
        assert said.startswith("cirron-otel: torch 2.")
        assert said.endswith(f"): not recorded: {lost}")


def test_every_case_is_looked_at(doctored_results: Any) -> None:
    assert set(LOST) - set(doctored_results) <= {"compiled functions"}
    assert set(doctored_results) <= set(LOST)
