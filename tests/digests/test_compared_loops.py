"""`diff` of real loops of every kind: repeated, and with one gradient scaled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.dgrr.traces import command
from tests.digests.loops import AT, LOOPS, STEPS, Loop, traced


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


ALL = LOOPS | {"compiled": compiled}


def scale(model: Any, *_: Any) -> None:
    next(model.parameters()).grad.mul_(2)


def record(folder: Path, name: str, loop: Loop) -> Path:
    with traced(folder, digest="tensors"):
        ALL[name](loop)
    return folder


@pytest.mark.parametrize("name", ALL)
def test_loops_of_every_kind(name: str, tmp_path: Path) -> None:
    first = record(tmp_path / "a", name, Loop())
    again = record(tmp_path / "b", name, Loop())
    scaled = record(tmp_path / "c", name, Loop(scale, "backward"))
    document = json.loads(command("diff", first, again, "--json")[1])
    assert document["divergence"] is None
    assert document["digests"]["identical"] is True
    assert document["digests"]["compared"] == STEPS
    found = json.loads(command("diff", first, scaled, "--json")[1])["divergence"]
    tensor = "weight" if name in ("gan", "lbfgs") else "0.weight"
    assert (found["step"], found["quantity"], found["tensor"]) == (AT, "grads", tensor)
    assert found["ulp"] > 0
