"""Time is recorded where it went: whatever sleeps in a loop shows in its own phase and no other.

No duration is asserted but the sleep's own. Where a sleep lies, among the scopes, is told by the
clock that the scopes are measured with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, default_collate

import cirron_otel as ci
from cirron_otel.sdk.tracing.clock import now, wall
from tests.kit.sessions.spool_trees import Node, read_spool

SLEEP_NS = 50_000_000
PHASES = ("data_load", "zero_grad", "forward", "loss", "backward", "optimizer_step")
STEPS = 3


class Sleeper:
    """Sleeps once a step, where it is told to, and knows when."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.sleeps: list[tuple[int, int]] = []

    def at(self, place: str) -> None:
        """Sleep, if this is the place."""
        if place == self.place:
            start = wall(now())
            time.sleep(SLEEP_NS / 1e9)
            self.sleeps.append((start, wall(now())))

    def hook(self, place: str) -> Callable[..., None]:
        """A hook that sleeps if it is the place."""
        return lambda *_: self.at(place)


class Points(Dataset[Any]):
    """Two to a batch; the second of each sleeps."""

    def __init__(self, sleeper: Sleeper) -> None:
        self.sleeper = sleeper

    def __len__(self) -> int:
        return 2 * STEPS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index % 2:
            self.sleeper.at("dataset")
        return torch.full((4,), index / 10), torch.ones(1)


class Layer(nn.Linear):
    """A layer that may sleep: when it computes, or when checkpointing has it compute again."""

    def __init__(self, sleeper: Sleeper) -> None:
        super().__init__(4, 4)
        self.sleeper = sleeper
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.sleeper.at("layer" if self.calls % 2 else "recompute")
        return super().forward(x)


class Model(nn.Module):
    """A checkpointed layer, and one that is not."""

    def __init__(self, sleeper: Sleeper) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layer = Layer(sleeper)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.layer, self.first(x), use_reentrant=False))


class Criterion(nn.MSELoss):
    """A criterion that may sleep."""

    def __init__(self, sleeper: Sleeper) -> None:
        super().__init__()
        self.sleeper = sleeper

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        self.sleeper.at("criterion")
        return super().forward(out, y)


class Optimizer(torch.optim.SGD):
    """An optimizer that may sleep."""

    sleeper: Sleeper

    def step(self, closure: Any = None) -> Any:
        self.sleeper.at("optimizer")
        return super().step(closure)


def _train(sleeper: Sleeper) -> None:
    def collate(samples: Any) -> Any:
        sleeper.at("collate")
        return default_collate(samples)

    loader = DataLoader(Points(sleeper), 2, collate_fn=collate)
    model, criterion = Model(sleeper), Criterion(sleeper)
    optimizer = Optimizer(model.parameters(), lr=0.01)
    optimizer.sleeper = sleeper
    for x, y in loader:
        sleeper.at("before the forward")
        optimizer.zero_grad()
        out = model(x)
        out.register_hook(sleeper.hook("hook in the backward"))
        loss = criterion(out, y)
        loss.backward()
        sleeper.at("before the optimizer")
        optimizer.step()
        sleeper.at("after the step")


def _steps(place: str, directory: Path) -> tuple[list[Node], list[tuple[int, int]]]:
    """The steps, and when it slept; the session is open before anything of torch is called."""
    sleeper = Sleeper(place)
    profiler = ci.profile(
        output_dir=str(directory), frameworks=["torch"], exporters="none", join="none",
        handle_signals=False, snapshots=None,
    )  # fmt: skip
    try:
        assert profiler.enabled
        torch.manual_seed(0)
        _train(sleeper)
    finally:
        ci.shutdown()
    (epoch,) = read_spool(directory).session.find("epoch")
    steps = [node for node in epoch.children if node.name == "step"]
    assert len(steps) == len(sleeper.sleeps) == STEPS
    for step in steps:
        assert [child.name for child in step.children] == list(PHASES)
    return steps, sleeper.sleeps


def _span(node: Node) -> tuple[int, int]:
    return node.record["start_ns"], node.record["end_ns"]


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _unattributed(step: Node) -> int:
    """Its `unattributed_ns`, which with its children is its duration to the nanosecond."""
    found = step.record["attrs"]["unattributed_ns"]
    covered = sum(end - start for start, end in map(_span, step.children))
    assert covered + found == step.record["end_ns"] - step.record["start_ns"]
    return int(found)


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        ("dataset", "data_load"),
        ("collate", "data_load"),
        ("layer", "forward"),
        ("criterion", "loss"),
        ("hook in the backward", "backward"),
        ("recompute", "backward"),
        ("optimizer", "optimizer_step"),
    ],
)
def test_a_sleep_is_in_its_phase_and_in_no_other(place: str, phase: str, tmp_path: Path) -> None:
    steps, sleeps = _steps(place, tmp_path)
    for step, sleep in zip(steps, sleeps, strict=True):
        met = [child for child in step.children if _meet(_span(child), sleep)]
        assert [child.name for child in met] == [phase]
        assert _within(sleep, _span(met[0]))
        assert met[0].record["end_ns"] - met[0].record["start_ns"] >= SLEEP_NS
        _unattributed(step)
        recomputed = met[0].find("recompute")
        assert len(recomputed) == (phase == "backward")
        assert [_within(sleep, _span(each)) for each in recomputed] == (
            [place == "recompute"] if recomputed else []
        )


@pytest.mark.parametrize("place", ["before the forward", "before the optimizer"])
def test_a_sleep_in_the_loop_is_unattributed(place: str, tmp_path: Path) -> None:
    steps, sleeps = _steps(place, tmp_path)
    for step, sleep in zip(steps, sleeps, strict=True):
        assert _within(sleep, _span(step))
        assert not any(_meet(_span(child), sleep) for child in step.children)
        assert _unattributed(step) >= SLEEP_NS


def test_a_sleep_after_the_last_child_is_in_no_step(tmp_path: Path) -> None:
    steps, sleeps = _steps("after the step", tmp_path)
    for sleep in sleeps:
        assert not any(_meet(_span(step), sleep) for step in steps)
    for step in steps:
        _unattributed(step)
