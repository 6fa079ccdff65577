"""`mark_loss=True`: the value that `backward` is called on, bit for bit, and nothing else."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci
from tests.kit.sessions.spool_trees import read_spool

NAME = "backward_loss"


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., list[tuple[float, str]]]]:
    """Return a function that runs a program, and returns the marks with the names of scopes."""

    def run(program: Callable[[], Any], **options: Any) -> list[tuple[float, str]]:
        directory = tmp_path / "run"
        options = {"mark_loss": True, **options}
        profiler = ci.profile(
            output_dir=directory, exporters="none", join="none", handle_signals=False, **options
        )
        try:
            program()
        finally:
            ci.shutdown()
        assert not any(profiler.health()["swallowed_errors"].values())
        spool = read_spool(directory)
        spans = {span["id"]: span for span in spool.spans}

        def path(span: Any) -> str:
            above = spans.get(span["parent_id"])
            return f"{path(above)} {span['name']}" if above else ""

        marks = sorted(spool.marks, key=lambda mark: int(mark["ts_ns"]))
        return [
            (mark["value"], path(spans[mark["span_id"]]).strip())
            for mark in marks
            if mark["name"] == NAME
        ]

    yield run
    ci.shutdown()


def _train(seen: list[float], *, every: int = 1) -> torch.Tensor:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4))
    for number, (batch,) in enumerate(torch.utils.data.DataLoader(data, batch_size=2)):
        loss = model(batch).square().mean() / every
        seen.append(loss.item())
        loss.backward()
        loss.data.fill_(-1.0)  # the value at the call counts
        if number % every == every - 1:
            optimizer.step()
            optimizer.zero_grad()
    return model.weight.detach().clone()


def test_each_step_has_the_value_of_its_backward(record: Callable[..., Any]) -> None:
    seen: list[float] = []
    marks = record(lambda: _train(seen))
    assert marks == [(value, "epoch step backward") for value in seen]


def test_accumulation_has_a_value_for_each_micro_step(record: Callable[..., Any]) -> None:
    seen: list[float] = []
    marks = record(lambda: _train(seen, every=2))
    assert marks == [(value, "epoch step micro_step backward") for value in seen]


def test_a_step_without_detail_has_its_value(record: Callable[..., Any]) -> None:
    seen: list[float] = []
    marks = record(lambda: _train(seen), detail_every=100, detail_slow_factor=1e6)
    assert [value for value, _ in marks] == seen
    assert {path for _, path in marks} <= {"epoch step backward", "epoch step"}


def test_training_is_the_same(record: Callable[..., Any]) -> None:
    expected = _train([])
    state = torch.get_rng_state()
    weights: list[torch.Tensor] = []
    record(lambda: weights.append(_train([])))
    assert torch.equal(weights[0], expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision_is_exact(record: Callable[..., Any], dtype: torch.dtype) -> None:
    loss = torch.tensor([1 / 3], dtype=dtype, requires_grad=True) * 1
    value = loss.item()
    assert record(loss.backward) == [(value, "backward")]


def test_no_mark_is_recorded_without_backward_on_a_single_scalar(
    record: Callable[..., Any],
) -> None:
    def program() -> None:
        vector = torch.ones(3, requires_grad=True)
        (vector * 2).backward(torch.ones(3))
        torch.autograd.grad(vector.sum(), vector)
        torch.autograd.backward([vector.sum(), vector.sum()])

    assert record(program) == []


def test_autograd_graph_is_not_retained(record: Callable[..., Any]) -> None:
    freed: list[bool] = []

    def program() -> None:
        parameter = torch.ones(3, requires_grad=True)
        loss = (parameter * 2).sum()
        reference = weakref.ref(loss)
        loss.backward()
        del loss
        gc.collect()
        freed.append(reference() is None)

    record(program)
    assert freed == [True]


def test_it_is_off_by_default(record: Callable[..., Any]) -> None:
    assert record(lambda: _train([]), mark_loss=False) == []
