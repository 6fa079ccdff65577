"""`diff` of real loops of every kind: repeated, and with one gradient scaled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.importers.dgrr.traces import command

from .conftest import Recorded
from .loops import (
    AT,
    LOOPS,
    STEPS,
    Loop,
    traced,
)


def compiled(loop: Loop) -> Any:
    """A model that Dynamo has compiled."""
    model, loader = loop.model(), loop.data()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    fast = torch.compile(model, backend="aot_eager")
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        (fast(x) - y).square().mean().backward()
        loop.at("backward", step, model, optimizer, loop)
        optimizer.step()
    return model


def scale(model: Any, *_: Any) -> None:
    next(model.parameters()).grad.mul_(2)


def check(first: Path, again: Path, scaled: Path, tensor: str) -> None:
    document = json.loads(command("diff", first, again, "--json")[1])
    assert document["divergence"] is None
    assert document["digests"]["identical"] is True
    assert document["digests"]["compared"] == STEPS
    found = json.loads(command("diff", first, scaled, "--json")[1])["divergence"]
    assert (found["step"], found["quantity"], found["tensor"]) == (AT, "grads", tensor)
    assert found["ulp"] > 0


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_every_kind(name: str, recorded: Recorded) -> None:
    tensor = "weight" if name in ("gan", "lbfgs") else "0.weight"
    check(recorded(name), recorded(name, "again"), recorded(name, "scaled"), tensor)


def test_a_compiled_model(tmp_path: Path) -> None:
    names = ("first", "again", "scaled")
    for name in names:
        loop = Loop(scale, "backward") if name == "scaled" else Loop()
        with traced(tmp_path / name, digest="tensors"):
            compiled(loop)
    check(*[tmp_path / name for name in names], "0.weight")
