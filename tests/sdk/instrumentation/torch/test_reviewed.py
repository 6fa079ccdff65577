"""Loops and programs that the hooks once disturbed or recorded incorrectly."""

from __future__ import annotations

import gc
import inspect
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry import baggage, context
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.torch import accumulation
from cirron_otel.sdk.tracing import buffers
from cirron_otel.sdk.tracing.phase import Phase
from tests.kit.sessions.spool_trees import Node, read_spool


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    ci.profile(output_dir=str(tmp_path), snapshots=None)
    yield tmp_path
    ci.shutdown()


def session(folder: Path) -> Node:
    ci.shutdown()
    return read_spool(folder).session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x) * scale


class Twice(nn.Module):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


class Both(Net, Twice):
    """Inherits the `__call__` of Twice behind that of Net."""


def train(model: nn.Module, batches: int = 4, epochs: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for x in DataLoader(torch.rand(batches, 2), 1):
            model(x).sum().backward()
            optimizer.step()


def test_inherited_call_next_in_the_mro_is_called(folder: Path) -> None:
    train(Net())
    model, x = Both(), torch.rand(1, 2)
    assert model(x).item() == pytest.approx(2 * model.forward(x).item())


def test_a_forward_that_is_called_directly_keeps_its_signature(folder: Path) -> None:
    model, x = Net(), torch.rand(1, 2)
    for _ in range(3):
        model.forward(x).sum().backward()
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]
    assert torch.jit.script(model)(x).shape == (1, 1)
    assert torch.fx.symbolic_trace(model)(x).shape == (1, 1)


def test_fetch_after_a_direct_forward_call_belongs_to_its_step(folder: Path) -> None:
    model = Net()
    model.forward(torch.rand(1, 2))
    train(model, 3)
    (epoch,) = session(folder).find("epoch")
    assert [len(step.children) for step in epoch.find("step")] == [4, 4, 4]


def test_context_attached_by_the_user_remains(folder: Path) -> None:
    seen = []
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, x in enumerate(DataLoader(torch.rand(4, 2), 1)):
        seen.append(baggage.get_baggage("run"))
        if number == 1:
            context.attach(baggage.set_baggage("run", "A"))
        model(x).sum().backward()
        optimizer.step()
    assert seen == [None, None, "A", "A"]


def test_a_patch_of_others_that_comes_and_goes(tmp_path: Path) -> None:
    original = nn.Module.__call__

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **kwargs)

    ci.profile(output_dir=str(tmp_path), snapshots=None)
    before = nn.Module.__call__
    nn.Module.__call__ = wrapper  # type: ignore[method-assign]
    Net()(torch.rand(1, 2))
    nn.Module.__call__ = before  # type: ignore[method-assign]
    train(Net())
    ci.shutdown()
    assert nn.Module.__call__ is original


def test_retained_hooks_record_nothing_after_shutdown(tmp_path: Path) -> None:
    ci.profile(output_dir=str(tmp_path), snapshots=None)
    model = Net()
    train(model)
    call, grad = model.__call__, torch.autograd.grad
    ci.shutdown()
    for _ in range(5):
        grad(call(torch.rand(1, 2, requires_grad=True)).sum(), list(model.parameters()))
    assert sum(len(each.scopes) for each in buffers.registry) == 0


def test_names_of_optimizers_that_come_and_go(folder: Path) -> None:
    kinds = (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop)
    model = Net()
    for number, x in enumerate(DataLoader(torch.rand(9, 2), 1)):
        model(x).sum().backward()
        kinds[number % 3](model.parameters(), lr=0.1).step()
    found = [n.record["attrs"]["optimizer"] for n in session(folder).find("optimizer_step")]
    assert found == ["SGD", "AdamW", "RMSprop"] * 3


def test_many_phases_ahead_of_a_bare_step_are_all_recorded(folder: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(40):
            model(torch.rand(1, 2)).sum().backward()
        optimizer.step()
    steps = session(folder).find("step")
    assert [len(step.find("micro_step")) for step in steps] == [40, 40]


@pytest.mark.parametrize("every", [2, 10])
def test_every_nth_step_over_epochs_of_any_length(every: int, tmp_path: Path) -> None:
    ci.profile(output_dir=str(tmp_path), snapshots=None, detail_every=every, detail_slow_factor=1e9)
    train(Net(), batches=11, epochs=10)
    steps = session(tmp_path).find("step")
    whole = [number for number, step in enumerate(steps) if step.children]
    assert whole == list(range(0, 110, every))


def test_time_in_a_folded_phase_is_not_counted_twice(tmp_path: Path) -> None:
    ci.profile(output_dir=str(tmp_path), snapshots=None, detail_every=3, detail_slow_factor=1e9)
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for x in DataLoader(torch.rand(12, 2), 1):

        def closure(x: Any = x) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    steps = session(tmp_path).find("step")
    assert len(steps) == 12
    assert all(step.record["attrs"]["unattributed_ns"] >= 0 for step in steps)
    for step in steps:
        names = {child.name for child in step.children}
        assert names in (set(), {"data_load", "optimizer_step"})


@pytest.mark.parametrize("name", ["forward", "optimizer_step"])
def test_a_session_that_ends_in_a_phase_ends_the_step_with_it(name: str, folder: Path) -> None:
    """As SIGTERM has it: what is inside a step is no longer than the step."""

    class Last(Net):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            if name == "forward" and x[0, 0] == 4:
                ci.shutdown()
            return super().forward(x, scale)

    class Stepped(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if name == "optimizer_step" and x[0, 0] == 4:
                ci.shutdown()
            return super().step(closure)

    model = Last()
    optimizer = Stepped(model.parameters(), lr=0.1)
    for x in DataLoader(torch.arange(6.0).reshape(3, 2), 1):
        model(x).sum().backward()
        optimizer.step()
    spool = read_spool(folder).session
    *_, step = spool.find("step")
    (left,) = [child for child in step.children if "incomplete" in child.record["attrs"]]
    assert left.name == name
    assert left.record["end_ns"] <= step.record["end_ns"]
    assert step.record["attrs"]["unattributed_ns"] >= 0


def test_an_evaluation_between_the_fetch_and_the_use_of_a_batch(folder: Path) -> None:
    model, held_out = Net(), DataLoader(torch.rand(2, 2), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, x in enumerate(DataLoader(torch.rand(4, 2), 1)):
        if number % 2 == 0:
            with torch.no_grad():
                for y in held_out:
                    model(y)
        model(x).sum().backward()
        optimizer.step()
    root = session(folder)
    assert [child.name for child in root.children] == ["data_load", "eval", "epoch"]
    (epoch,) = root.find("epoch")
    names = [child.name for child in epoch.children]
    assert names == ["step", "step", "data_load", "eval", "step", "step"]
    for step in epoch.find("step"):
        found = [child.name for child in step.children if child.name != "data_load"]
        assert found == ["forward", "backward", "optimizer_step"]


def test_a_training_in_a_single_step_keeps_no_phases(folder: Path) -> None:
    """The iterator that gave the only batch is kept, so its step goes on."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    iterator = iter(DataLoader(torch.rand(4, 2), 1))
    x = next(iterator)
    for _ in range(1_200):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    ci.flush()
    kept = sum(type(each) is Phase for each in gc.get_objects())
    del iterator
    (epoch,) = session(folder).children
    (step,) = epoch.children
    assert kept < 2_000
    assert len(step.children) == 4_801
    covered = sum(each.record["end_ns"] - each.record["start_ns"] for each in step.children)
    whole = step.record["end_ns"] - step.record["start_ns"]
    assert step.record["attrs"]["unattributed_ns"] == whole - covered


def test_the_optimizer_step_is_from_the_call_to_its_return(tmp_path: Path) -> None:
    """Hooks of the program, called ahead of this package's hooks or after them, are inside it."""

    def scoped(name: str) -> Any:
        def hook(*_: Any) -> None:
            with ci.scope(name):
                pass

        return hook

    handles = [register_optimizer_step_pre_hook(scoped("before"))]
    ci.profile(output_dir=str(tmp_path), snapshots=None)
    handles.append(register_optimizer_step_post_hook(scoped("after")))
    try:
        train(Net(), batches=2)
    finally:
        for handle in handles:
            handle.remove()
    steps = session(tmp_path).children[0].children
    found = [each.children[-1] for each in steps]
    assert [each.name for each in found] == ["optimizer_step"] * 2
    assert [[part.name for part in each.children] for each in found] == [["before", "after"]] * 2


def test_steps_of_an_optimizer_with_a_scheduler_are_recorded_once(tmp_path: Path) -> None:
    """A scheduler keeps the function that was the optimizer's `step` when it was constructed."""

    def trained(folder: Path | None) -> torch.optim.Optimizer:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizers.append(optimizer)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        if folder is not None:
            ci.profile(output_dir=str(folder), snapshots=None)
        for each in optimizers:
            for x in DataLoader(torch.rand(2, 2), 1):
                model(x).sum().backward()
                each.step()
        return optimizer

    optimizers: list[torch.optim.Optimizer] = []
    trained(None)
    original = torch.optim.SGD.step
    for number in range(3):  # the optimizers of the earlier sessions step, too
        folder = tmp_path / str(number)
        trained(folder)
        ci.shutdown()
        names = [each["name"] for each in read_spool(folder).spans]
        assert names.count("optimizer_step") == 2 * len(optimizers)
        assert torch.optim.SGD.step is original
        ci.profile(output_dir=str(tmp_path / f"open{number}"), snapshots=None)
        trained(None)  # constructed while the hooks are installed
        ci.shutdown()


def test_an_optimizer_step_inside_that_of_another_class_is_part_of_it(folder: Path) -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return super().step()

    model = Net()
    optimizer = Twice(model.parameters(), lr=0.1)
    for x in DataLoader(torch.rand(2, 2), 1):
        model(x).sum().backward()
        optimizer.step()
    steps = session(folder).children[0].children
    assert [[each.name for each in step.children] for step in steps] == [
        ["data_load", "forward", "backward", "optimizer_step"]
    ] * 2
    assert not any(each.children for step in steps for each in step.children)


def test_a_step_that_raises_does_not_hide_the_next_one(folder: Path) -> None:
    class Failing(torch.optim.SGD):
        fails = True

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise ValueError("no step")
            return super().step(closure)

    model = Net()
    optimizer = Failing(model.parameters(), lr=0.1)
    for x in DataLoader(torch.rand(3, 2), 1):
        model(x).sum().backward()
        try:
            optimizer.step()
        except ValueError as error:
            names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
            assert names == [
                "test_a_step_that_raises_does_not_hide_the_next_one",
                "wrapper",
                "step",
            ]
        optimizer.fails = False
    steps = session(folder).children[0].children
    expected = ["data_load", "forward", "backward", "optimizer_step"]
    assert [[each.name for each in step.children] for step in steps] == [expected] * 3


@pytest.mark.parametrize("first", [0, 2])
def test_a_gradient_whose_storage_is_freed_is_not_read(first: int) -> None:
    """Reading it would end the process."""
    gradient = torch.zeros(8)[first:]
    assert accumulation._can_read(gradient)
    assert accumulation._is_zero(gradient)
    assert accumulation._can_read(torch.zeros(8, 4).T)
    assert accumulation._can_read(torch.zeros(0))
    gradient.untyped_storage().resize_(0)
    assert not accumulation._can_read(gradient)


class _Unhashable(type):
    """A metaclass whose classes have no hash."""

    def __eq__(cls, other: object) -> bool:
        return cls is other

    __hash__ = None  # type: ignore[assignment]


def test_an_optimizer_class_without_a_hash_can_be_constructed(tmp_path: Path) -> None:
    ci.profile(output_dir=tmp_path, exporters="none", join="none", handle_signals=False)
    try:

        class Odd(torch.optim.SGD, metaclass=_Unhashable):
            def step(self, closure: Any = None) -> Any:
                return super().step(closure)

        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = Odd([weight], lr=0.1)
        weight.sum().backward()
        optimizer.step()
    finally:
        ci.shutdown()
    assert weight[0].item() == pytest.approx(0.9)
