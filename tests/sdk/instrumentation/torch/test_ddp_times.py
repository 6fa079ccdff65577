"""The times that DistributedDataParallel measures are marks of the iterations it measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import cirron_otel as ci
from cirron_otel.semconv import DDP_COMMUNICATION, DDP_COMPUTE, DDP_EXPOSED
from tests.kit.sessions.spool_trees import Spool

from .one_session import recorded

NAMES = {DDP_COMMUNICATION, DDP_COMPUTE, DDP_EXPOSED}


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Spool]]:
    """Return a function that runs a program as the only rank of a job, and returns its spool."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)

    def run(program: Callable[[], Any], **options: Any) -> Spool:
        return recorded(tmp_path / "run", program, **options)

    yield run
    ci.shutdown()
    distributed.destroy_process_group()


class Slow(torch.autograd.Function):
    """Takes 20 ms in the backward pass."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> Any:
        time.sleep(0.02)
        return grads[0]


class SlowLinear(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Slow.apply(super().forward(x))


def model(kind: type[torch.nn.Linear] = torch.nn.Linear) -> Any:
    return DistributedDataParallel(kind(4, 1))


def train(*models: Any, steps: int = 14) -> None:
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in models]
    data = torch.utils.data.TensorDataset(torch.ones(steps, 4))
    for (batch,) in torch.utils.data.DataLoader(data):
        for each, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            each(batch).sum().backward()
            optimizer.step()


def times(spool: Spool) -> list[Any]:
    return [mark for mark in spool.marks if mark["name"] in NAMES]


def test_each_measured_iteration_has_its_times(record: Callable[..., Spool]) -> None:
    """DDP measures the first ten of 14 iterations."""
    spool = record(lambda: train(model()))
    marks = times(spool)
    assert Counter(mark["name"] for mark in marks) == dict.fromkeys(NAMES, 10)
    assert all(type(mark["value"]) is int and mark["value"] >= 0 for mark in marks)
    names = {span["id"]: span["name"] for span in spool.spans}
    assert {names[mark["span_id"]] for mark in marks} == {"forward"}


def test_time_of_a_mark_is_in_the_backward_pass_that_was_measured(
    record: Callable[..., Spool],
) -> None:
    spool = record(lambda: train(model(SlowLinear)))
    passes = sorted(
        (int(span["start_ns"]), int(span["end_ns"]))
        for span in spool.spans if span["name"] == "backward"
    )  # fmt: skip
    marks = sorted(int(mark["ts_ns"]) for mark in times(spool) if mark["name"] == DDP_EXPOSED)
    most = 5 * 10**6  # the clocks are not read at the same moment; a pass takes 20 ms
    for (start, end), at in zip(passes[:10], marks, strict=True):
        assert start - most <= at <= end + most


def test_option_turns_them_off(record: Callable[..., Spool]) -> None:
    assert times(record(lambda: train(model()), ddp_times=False)) == []


def test_steps_of_several_models_have_none(record: Callable[..., Spool]) -> None:
    """The passes of a step cannot be distinguished; DDP measures none before the second model."""
    assert times(record(lambda: train(model(), model()))) == []


@pytest.mark.parametrize("lives_on", [False, True])
def test_model_that_follows_another_one_has_its_times(
    record: Callable[..., Spool], lives_on: bool
) -> None:
    """The memory of a model in a reference cycle is not freed at once."""
    earlier = []

    def program() -> None:
        for _ in range(3):
            ours = model()
            train(ours, steps=6)
            if lives_on:
                earlier.append(ours)

    assert len(times(record(program))) == 3 * 5 * len(NAMES)


def test_models_that_are_called_in_turns_later_have_none_from_then_on(
    record: Callable[..., Spool],
) -> None:
    def program() -> None:
        first, second = model(), model()
        train(first, steps=4)
        train(first, second)

    assert len(times(record(program))) <= (4 + 1) * len(NAMES)


def test_evaluation_and_local_gradients_have_none(record: Callable[..., Spool]) -> None:
    def program() -> None:
        ours = model()
        with ours.no_sync():
            train(ours, steps=4)
        with torch.no_grad():
            ours(torch.ones(1, 4))

    assert times(record(program)) == []


def test_hook_is_removed(record: Callable[..., Spool]) -> None:
    before = vars(DistributedDataParallel)["_post_forward"]
    record(lambda: train(model(), steps=2))
    assert vars(DistributedDataParallel)["_post_forward"] is before
