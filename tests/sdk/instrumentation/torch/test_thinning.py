"""detail_every with hooks: the inside of most steps is never recorded, and nothing else is lost."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci
from tests.kit.sessions.spool_trees import Node, read_spool

STEPS = 23
PHASES = ["data_load", "forward", "backward", "optimizer_step"]


class Model(nn.Module):
    """A layer that does as it is told at some of its calls."""

    def __init__(
        self, slow: tuple[int, ...] = (), bad: tuple[int, ...] = (), seconds: float = 0.2
    ) -> None:
        super().__init__()
        self.seconds = seconds
        self.layer = nn.Linear(4, 1)
        self.slow, self.bad, self.calls = slow, bad, -1

    def forward(self, x: Any) -> Any:
        self.calls += 1
        ci.mark("call", self.calls)
        if self.calls in self.slow:
            time.sleep(self.seconds)
        if self.calls in self.bad:
            raise ValueError("told to")
        return self.layer(x)


def steps_of(folder: Path, model: Model, epochs: int = 1, **options: Any) -> tuple[list[Node], Any]:
    """The recorded steps of a plain loop, and the profiler's health at its end."""
    loader = DataLoader(TensorDataset(torch.randn(STEPS, 4)), batch_size=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ci.profile(output_dir=str(folder), snapshots=None, **options)
    try:
        for _ in range(epochs):
            for (x,) in loader:
                with contextlib.suppress(ValueError):
                    model(x).sum().backward()
                optimizer.step()
        ci.flush()
        health = ci.health()
    finally:
        ci.shutdown()
    return read_spool(folder).session.find("step"), health


def detailed(steps: list[Node]) -> list[int]:
    """The places of the steps whose phases are recorded."""
    return [place for place, step in enumerate(steps) if step.children]


def test_every_nth_step_is_detailed_and_no_step_is_dropped(tmp_path: Path) -> None:
    steps, health = steps_of(tmp_path, Model(), 2, detail_every=5, detail_slow_factor=1e9)
    assert [step.record["index"] for step in steps] == [*range(STEPS), *range(STEPS)]
    whole = detailed(steps)
    assert len(whole) in range(2 * STEPS // 5, 2 * STEPS // 5 + 5)  # the first steps by themselves
    for place in whole:
        assert [child.name for child in steps[place].children] == PHASES
    assert health["drops"]["scopes_thinned"] == len(PHASES) * (2 * STEPS - len(whole))


def test_step_figures_account_for_thinned_phases(tmp_path: Path) -> None:
    steps, _ = steps_of(tmp_path, Model((9,)), detail_every=5, detail_slow_factor=1e9)
    for step in steps:
        length = step.record["end_ns"] - step.record["start_ns"]
        rest = step.record["attrs"]["unattributed_ns"]
        covered = sum(c.record["end_ns"] - c.record["start_ns"] for c in step.children)
        assert 0 <= rest < length
        if step.children:
            assert rest + covered == length
    slow = steps[9].record
    in_phases = slow["end_ns"] - slow["start_ns"] - slow["attrs"]["unattributed_ns"]
    assert in_phases >= 200_000_000  # recorded or not


def test_slow_and_failed_steps_keep_their_inside(tmp_path: Path) -> None:
    model = Model((12,), (18,), seconds=2.0)  # for a busy machine
    steps, _ = steps_of(tmp_path, model, detail_every=1_000, detail_slow_factor=20.0)
    whole = detailed(steps)
    assert {12, 18} <= set(whole)
    assert set(range(5, STEPS)) - set(whole), "some step is neither"
    slow, failed = steps[12], steps[18]
    assert [child.name for child in slow.children] == PHASES
    forward = slow.children[1].record
    assert forward["end_ns"] - forward["start_ns"] >= 2_000_000_000
    assert forward["attrs"] == {"module": "Model"}
    assert [child.name for child in failed.children] == ["data_load", "forward", "optimizer_step"]
    assert failed.children[1].record["otel"]["status"]["code"] == 2
    for step in (slow, failed):
        for one, other in zip(step.children, step.children[1:], strict=False):
            assert one.record["end_ns"] <= other.record["start_ns"]
    ids = [node.record["id"] for step in steps for node in (step, *step.children)]
    assert len(set(ids)) == len(ids)


def test_marks_stay(tmp_path: Path) -> None:
    steps, _ = steps_of(tmp_path, Model(), detail_every=10, detail_slow_factor=1e9)
    for place, step in enumerate(steps):
        marks = [mark for node in (step, *step.children) for mark in node.marks]
        assert [m["value"] for m in marks if m["name"] == "call"] == [place]


def test_steps_with_user_scopes_are_thinned_as_any_other(tmp_path: Path) -> None:
    """They end the shortcut, and a step with one of them is thinned as any other is."""
    model, loader = Model(), DataLoader(TensorDataset(torch.randn(STEPS, 4)), batch_size=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ci.profile(output_dir=str(tmp_path), snapshots=None, detail_every=5, detail_slow_factor=1e9)
    try:
        for place, (x,) in enumerate(loader):
            model(x).sum().backward()
            if place % 2:
                with ci.scope("own"):
                    pass
            optimizer.step()
    finally:
        ci.shutdown()
    steps = read_spool(tmp_path).session.find("step")
    assert len(steps) == STEPS
    for step in steps:
        names = [child.name for child in step.children]
        assert names in ([], PHASES, [*PHASES[:3], "own", PHASES[3]]), names
