"""The phases of an optimizer's closure are inside its `optimizer_step`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import cirron_otel as ci
from tests.kit.sessions.spool_trees import Node, read_spool

INSIDE = ["zero_grad", "forward", "loss", "backward"]


class Training:
    """A model that is trained by an optimizer with a closure."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1)
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(torch.arange(16.0).reshape(8, 2), 1)

    def closure(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        def compute() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), x[:, :1])
            loss.backward()
            return loss

        return compute


@pytest.fixture(params=[{}, {"detail_every": 1}, {"detail_every": 3}], ids=str)
def steps(request: Any, tmp_path: Path) -> Iterator[Callable[[], list[Node]]]:
    """Record, and return the recorded steps that have children."""
    ci.profile(output_dir=str(tmp_path), exporters="none", join="none", **request.param)

    def recorded() -> list[Node]:
        ci.shutdown()
        (epoch,) = read_spool(tmp_path).session.find("epoch")
        found = [step for step in epoch.find("step") if step.children]
        every = request.param.get("detail_every", 1)
        numbers = [step.record["index"] for step in found]
        assert set(range(0, 8, every)) <= set(numbers)
        return found

    yield recorded
    ci.shutdown()


def names(node: Node) -> list[str]:
    return [child.name for child in node.children]


def test_phases_of_a_closure(steps: Callable[[], list[Node]]) -> None:
    training = Training()
    for x in training.loader:
        training.optimizer.step(training.closure(x))
    for step in steps():
        load, stepped = step.children
        assert (load.name, names(stepped)) == ("data_load", INSIDE)
        covered = sum(each.record["end_ns"] - each.record["start_ns"] for each in step.children)
        length = step.record["end_ns"] - step.record["start_ns"]
        # The phases of the closure are part of the optimizer step and count only once.
        assert step.record["attrs"]["unattributed_ns"] == length - covered


def test_a_phase_after_the_closure(steps: Callable[[], list[Node]]) -> None:
    training = Training()
    for x in training.loader:
        training.optimizer.step(training.closure(x))
        training.criterion(training.model(x), x[:, :1])
        training.optimizer.zero_grad()
    for step in steps():
        assert names(step) == ["data_load", "optimizer_step", "forward", "loss", "zero_grad"]


def test_a_closure_that_raises(steps: Callable[[], list[Node]]) -> None:
    training = Training()
    for number, x in enumerate(training.loader):

        def fail(number: int = number, x: torch.Tensor = x) -> torch.Tensor:
            loss = training.closure(x)()
            if number in {3, 4}:
                raise ValueError("no loss")
            return loss

        if number == 4:
            with pytest.raises(ValueError, match="no loss"):
                training.optimizer.step(fail)
            training.optimizer.step(training.closure(x))
        elif number == 3:
            with pytest.raises(ValueError, match="no loss"):
                training.optimizer.step(fail)
        else:
            training.optimizer.step(fail)
    for step in steps():
        expected = ["data_load", "optimizer_step"]
        expected += ["optimizer_step"] if step.record["index"] == 4 else []
        assert names(step) == expected
        for stepped in step.find("optimizer_step"):
            assert names(stepped) == INSIDE
        failed = ["status" in each.record.get("otel", {}) for each in step.find("optimizer_step")]
        assert failed == {3: [True], 4: [True, False]}.get(step.record["index"], [False])


def test_another_optimizer_steps_in_the_closure(steps: Callable[[], list[Node]]) -> None:
    training = Training()
    other = torch.optim.SGD([nn.Parameter(torch.ones(1, requires_grad=True))], lr=0.1)
    for x in training.loader:

        def both(x: torch.Tensor = x) -> torch.Tensor:
            loss = training.closure(x)()
            other.step()
            other.zero_grad()
            return loss

        training.optimizer.step(both)
        training.model(x)
    for step in steps():
        assert names(step) == ["data_load", "optimizer_step", "forward"]
        assert names(step.children[1]) == [*INSIDE, "zero_grad"]
