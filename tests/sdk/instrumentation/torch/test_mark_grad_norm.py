"""The norm that `clip_grad_norm_` returns is the mark `grad_norm`, once in each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci

from .one_session import recorded

clip = torch.nn.utils.clip_grad_norm_


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., list[tuple[Any, str]]]]:
    """Return a function that runs a program, and returns its norms with the names of scopes."""

    def run(program: Callable[[], Any], **options: Any) -> list[tuple[Any, str]]:
        spool = recorded(tmp_path / "run", program, flush_interval=60, **options)
        spans = {span["id"]: span["name"] for span in spool.spans}
        marks = sorted(spool.marks, key=lambda each: int(each["ts_ns"]))
        return [
            (each.get("value_nonfinite") or each["value"], spans[each["span_id"]])
            for each in marks
            if each["name"] == "grad_norm"
        ]

    yield run
    ci.shutdown()


def _train(
    seen: list[float],
    *,
    loader: bool = True,
    clips: int = 1,
    bad: int = -1,
    scaler: Any = None,
    after: Callable[[float], Any] = lambda _: None,
) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = list(torch.randn(6, 4))
    for number, batch in enumerate(
        torch.utils.data.DataLoader(data, batch_size=1) if loader else data  # type: ignore[arg-type]
    ):
        loss = model(batch).square().mean()
        (scaler.scale(loss) if scaler is not None else loss).backward()
        if number == bad:
            model.weight.grad.fill_(math.inf)
        if scaler is not None:
            scaler.unscale_(optimizer)
        norms = [clip(model.parameters(), 1.0).item() for _ in range(clips)]
        seen.append(norms[0])
        after(norms[0])
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("has_loader", [True, False])
@pytest.mark.parametrize("clips", [1, 2])
def test_each_step_has_its_first_norm(
    record: Callable[..., Any], has_loader: bool, clips: int
) -> None:
    seen: list[float] = []
    marks = record(lambda: _train(seen, loader=has_loader, clips=clips))
    assert marks == [(value, "clip_grad") for value in seen]


def test_no_norm_is_marked_if_it_is_turned_off(record: Callable[..., Any]) -> None:
    assert record(lambda: _train([]), mark_grad_norm=False) == []


def test_norm_of_the_program_replaces_that_of_the_hooks(record: Callable[..., Any]) -> None:
    seen: list[float] = []
    marks = record(lambda: _train(seen, after=lambda norm: ci.mark("grad_norm", norm)))
    assert marks == [(value, "step") for value in seen]


def test_norm_that_is_not_finite_is_marked(record: Callable[..., Any]) -> None:
    own = ("step", "clip_grad")
    marks = record(lambda: _train([], bad=2, after=lambda _: ci.mark("grad_norm", 1.0)))
    assert [each for each in marks if each[0] != 1.0] == [("inf", own[1]), *[("nan", own[1])] * 3]


def test_steps_that_a_scaler_skips_have_no_norm(record: Callable[..., Any]) -> None:
    seen: list[float] = []
    marks = record(lambda: _train(seen, bad=2, scaler=torch.amp.GradScaler("cpu")))
    assert marks == [(value, "clip_grad") for value in seen if math.isfinite(value)]
    assert len(marks) == 5
