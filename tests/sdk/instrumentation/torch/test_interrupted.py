"""A KeyboardInterrupt in a hook's code, and another training afterwards in the same session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from .loops import parts
from .tools import Ours
from .trees import folded, read

STEPS = [
    "step[0-2]", "  data_load", "  zero_grad", "  forward", "  loss", "  backward",
    "  optimizer_step",
]  # fmt: skip


def with_loader() -> None:
    training = parts.Training()
    for batch in parts.loader():
        training.step(batch)


def without_loader() -> None:
    training = parts.Training()
    for batch in zip(*(each.split(2) for each in parts.points().tensors), strict=True):
        training.step(batch)


def interrupt(function: str, call: int, line: int) -> Callable[..., Any]:
    """A trace function that raises in a line of a hook's function; both count from 1."""
    calls, lines = 0, 0

    def of_call(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal calls
        if frame.f_code.co_name != function or "cirron_otel" not in frame.f_code.co_filename:
            return None
        calls += 1
        return of_line if calls == call else None

    def of_line(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return of_line

    return of_call


def interrupted(directory: Path, train: Callable[[], None], *where: Any) -> Any:
    """The tree of a training that is interrupted and of one behind it."""
    tool = Ours()
    tool.open(directory)
    before = sys.gettrace()
    try:
        with pytest.raises(KeyboardInterrupt) as kept:  # noqa: PT012
            # `kept` has the loop's frames, as `sys.last_value` does in a notebook.
            sys.settrace(interrupt(*where))
            train()
        sys.settrace(before)
        train()
    finally:
        sys.settrace(before)
        complaints = tool.close()
    assert isinstance(kept.value, KeyboardInterrupt)
    assert complaints == []
    found = read(directory)[0]
    assert found.orphans == []
    return found.root


@pytest.mark.parametrize(
    "where",
    [
        ("enter_plain", 3, 10), ("enter_plain", 7, 20), ("exit_plain", 5, 3), ("exit_plain", 9, 15),
        ("turn_over", 2, 30), ("exit", 4, 4), ("_enter", 3, 12), ("backward", 2, 13),
        ("method", 2, 9), ("fetch", 1, 3), ("exhausted", 1, 4), ("leave", 1, 2),
        ("begin_plain", 1, 6), ("end_step", 1, 5), ("call", 2, 14),
    ],
)  # fmt: skip
def test_training_after_an_interrupt_gets_a_complete_epoch(tmp_path: Path, where: Any) -> None:
    root = interrupted(tmp_path, with_loader, *where)
    last = root.children[-1]
    assert last.name == "epoch"
    assert folded(last.children) == STEPS


@pytest.mark.parametrize(
    "where",
    [
        ("_enter", 3, 12), ("exit", 4, 4), ("exit", 5, 8), ("method", 2, 9), ("backward", 2, 13),
        ("begin_step", 2, 6), ("end_step", 1, 5), ("call", 2, 14),
    ],
)  # fmt: skip
def test_so_has_one_without_a_loader_from_its_second_step_on(tmp_path: Path, where: Any) -> None:
    root = interrupted(tmp_path, without_loader, *where)
    for step in root.children[-2:]:
        names = [child.name for child in step.children if child.name != "zero_grad"]
        assert names == ["forward", "loss", "backward", "optimizer_step"]


def test_gradients_of_non_leaf_weights_are_not_accessed(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    tool = Ours()
    tool.open(tmp_path)
    model = parts.network()
    weights = {key: each.detach().requires_grad_() for key, each in model.named_parameters()}
    x, y = parts.points().tensors
    for _ in range(3):
        used = {key: each * 1.0 for key, each in weights.items()}
        (torch.func.functional_call(model, used, (x,)) - y).pow(2).mean().backward()
    assert tool.close() == []
    assert [str(each.message) for each in recwarn.list if "leaf" in str(each.message)] == []
