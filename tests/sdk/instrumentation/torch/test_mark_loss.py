"""The value that `backward` is called on is the mark `loss`, bit for bit, once in each step."""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci

from .one_session import recorded

NAME = "loss"


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., list[tuple[float, str]]]]:
    """Return a function that runs a program, and returns the marks with the names of scopes."""

    def run(program: Callable[[], Any], **options: Any) -> list[tuple[float, str]]:
        def flushed() -> None:
            ci.flush()  # the flush at the start of the session would divide the first marks
            program()

        spool = recorded(tmp_path / "run", flushed, flush_interval=60, **options)
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


def test_no_mark_is_recorded_if_it_is_turned_off(record: Callable[..., Any]) -> None:
    assert record(lambda: _train([]), mark_loss=False) == []


def _model() -> tuple[torch.nn.Module, torch.optim.Optimizer, list[torch.Tensor]]:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), list(torch.randn(6, 4))


def _loader(data: list[torch.Tensor]) -> Any:
    return torch.utils.data.DataLoader(data, batch_size=1)


def values(marks: list[tuple[float, str]]) -> list[float]:
    return [value for value, _ in marks]


def test_second_loss_of_a_step_is_left_out(record: Callable[..., Any]) -> None:
    seen: list[float] = []

    def program() -> None:
        model, optimizer, data = _model()
        for batch in _loader(data):
            loss = model(batch).square().mean()
            seen.append(loss.item())
            loss.backward()
            optimizer.step()
            (100 * model(batch)).mean().backward()
            optimizer.zero_grad()

    assert values(record(program)) == seen


def test_two_optimizers_without_a_loader_have_one_loss_a_step(record: Callable[..., Any]) -> None:
    first: list[float] = []

    def program() -> None:
        model, optimizer, data = _model()
        other = torch.nn.Linear(4, 1)
        other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        for batch in data:
            for each, its_optimizer in ((model, optimizer), (other, other_optimizer)):
                loss = each(batch).square().sum()
                loss.backward()
                its_optimizer.step()
                its_optimizer.zero_grad()
                if each is model:
                    first.append(loss.item())

    # The number of optimizers is not known in the first step.
    marks = values(record(program))
    assert (marks[0], marks[2:]) == (first[0], first[1:])


def test_several_losses_of_an_update_without_a_loader_have_one_mark(
    record: Callable[..., Any],
) -> None:
    first: list[float] = []

    def program() -> None:
        model, optimizer, data = _model()
        for batch in data:
            output = model(batch)
            first.append(output.square().sum().item())
            output.square().sum().backward(retain_graph=True)
            (10 + output.abs()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert values(record(program)) == first


@pytest.mark.parametrize("has_loader", [True, False])
def test_closure_has_the_loss_of_its_first_call(
    record: Callable[..., Any], has_loader: bool
) -> None:
    first: list[float] = []

    def program() -> None:
        model, _, data = _model()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        for batch in _loader(data) if has_loader else data:

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(batch) - 1).square().sum()
                loss.backward()
                return loss

            first.append(optimizer.step(closure).item())

    assert values(record(program)) == first


@pytest.mark.parametrize("has_own", [True, False])
def test_further_loss_is_marked_if_it_is_not_finite(
    record: Callable[..., Any], has_own: bool
) -> None:
    def program() -> None:
        model, optimizer, data = _model()
        for number, batch in enumerate(_loader(data)):
            loss = model(batch).square().mean()
            loss.backward()
            if has_own:
                ci.mark("loss", 1.0)
            bad = math.nan if number == 3 else 1.0
            (model(batch) * bad).mean().backward()
            optimizer.zero_grad()

    marks = values(record(program))
    assert marks.count(None) == 1  # type: ignore[comparison-overlap]
    assert marks.count(1.0) == (6 if has_own else 0)
    assert len(marks) == 7


@pytest.mark.parametrize("name", ["loss", "train/loss", "val_loss"])
def test_loss_of_the_program_replaces_that_of_the_hooks_if_it_has_the_name(
    record: Callable[..., Any], name: str
) -> None:
    seen: list[float] = []

    def program() -> None:
        model, optimizer, data = _model()
        for batch in _loader(data):
            loss = model(batch).square().mean()
            loss.backward()
            seen.append(loss.item())
            ci.mark(name, loss.item())
            optimizer.step()

    marks = record(program)
    assert values(marks) == seen
    is_hooks = [path.endswith("backward") for _, path in marks]
    assert is_hooks == [name != NAME] * len(seen)


def test_loss_of_an_epoch_or_an_evaluation_replaces_nothing(record: Callable[..., Any]) -> None:
    def program() -> None:
        model, optimizer, data = _model()
        for _ in range(2):
            for batch in _loader(data):
                model(batch).square().mean().backward()
                optimizer.step()
            with ci.scope("eval"):
                ci.mark("loss", 5.0)
            ci.mark("loss", 7.0)

    marks = record(program)
    assert len([path for _, path in marks if path.endswith("backward")]) == 12


def _with_own(marks: int, steps: int, *, has_scope: bool, flush: bool) -> Callable[[], None]:
    """Return a program without a loader that marks `loss` after each of some groups of steps."""

    def program() -> None:
        model, optimizer, data = _model()
        ci.flush()  # a session writes its header soon after its start, which is a flush
        for number in range(marks):
            with ci.scope("epoch", number) if has_scope else contextlib.nullcontext():
                for _ in range(steps):
                    optimizer.zero_grad()
                    model(data[0]).square().mean().backward()
                    optimizer.step()
                ci.mark("loss", 7.0)
            if flush:
                ci.flush()

    return program


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize(
    ("steps", "has_scope", "is_own"),
    [(1, False, True), (10, False, True), (11, False, False), (40, False, False),
     (1, True, True), (2, True, False), (40, True, False)],
)  # fmt: skip
def test_without_a_loader_a_loss_of_many_steps_or_of_an_epoch_replaces_nothing(
    record: Callable[..., Any], steps: int, has_scope: bool, is_own: bool, flush: bool
) -> None:
    marks = values(record(_with_own(4, steps, has_scope=has_scope, flush=flush)))
    # One mark after several steps does not decide, so a flush after it has the hooks' marks.
    of_hooks = (steps if flush and steps > 1 else 0) if is_own else 4 * steps
    assert len(marks) == 4 + of_hooks


def test_without_a_loader_own_losses_of_all_steps_of_an_epoch_replace_those_of_the_hooks(
    record: Callable[..., Any],
) -> None:
    def program() -> None:
        model, optimizer, data = _model()
        for number in range(2):
            with ci.scope("epoch", number):
                for batch in data:
                    loss = model(batch).square().mean()
                    ci.mark("loss", 7.0)
                    loss.backward()
                    optimizer.step()

    assert values(record(program)) == [7.0] * 12


class OtherScaler(torch.amp.GradScaler):
    """A subclass with its own `scale`, as that of FSDP."""

    def scale(self, outputs: Any) -> Any:
        return super().scale(outputs)


@pytest.mark.parametrize("scaler_class", [torch.amp.GradScaler, OtherScaler])
@pytest.mark.parametrize("is_enabled", [True, False])
def test_scaled_loss_has_its_value_ahead_of_the_scale(
    record: Callable[..., Any], scaler_class: Any, is_enabled: bool
) -> None:
    seen: list[float] = []

    def program() -> None:
        model, optimizer, data = _model()
        scaler = scaler_class("cpu", enabled=is_enabled)
        for batch in _loader(data):
            loss = model(batch).square().mean()
            seen.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    assert values(record(program)) == seen


def test_sum_of_scaled_losses_has_no_mark(record: Callable[..., Any]) -> None:
    def program() -> None:
        model, _, data = _model()
        scaler = torch.amp.GradScaler("cpu")
        for batch in _loader(data):
            output = model(batch)
            (scaler.scale(output.mean()) + scaler.scale(output.square().mean())).backward()

    assert record(program) == []


@pytest.mark.parametrize("iterable", [
    lambda losses: (each for each in losses),
    lambda losses: dict(enumerate(losses)).values(),
    lambda losses: dict.fromkeys(losses).keys(),
    iter,
    lambda losses: [losses],
    lambda losses: (iter(losses),),
], ids=["generator", "values", "keys", "iterator", "nested", "nested iterator"])  # fmt: skip
def test_scaled_losses_that_are_not_known_have_no_mark(
    record: Callable[..., Any], iterable: Callable[[list[torch.Tensor]], Any]
) -> None:
    """`scale` returns an iterable whose losses are scaled later."""

    def program() -> None:
        model, _, data = _model()
        scaler = torch.amp.GradScaler("cpu")
        for batch in _loader(data):
            output = model(batch)
            scaled = scaler.scale(iterable([output.mean(), output.square().mean()]))
            if type(scaled) in (list, tuple):
                (scaled,) = scaled
            for each in scaled:
                each.backward(retain_graph=True)

    assert record(program) == []


def test_modes_of_the_program_do_not_see_the_value_being_read(record: Callable[..., Any]) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def program() -> None:
        loss = torch.ones(2, requires_grad=True).sum()
        seen.clear()
        with Functions(), Operations():
            loss.backward()

    program()
    expected = [*seen]
    assert values(record(program)) == [2.0]
    assert seen == expected


def test_call_that_torch_refuses_inside_a_transform_has_no_mark(
    record: Callable[..., Any],
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        loss = (torch.ones(3, requires_grad=True) * x).sum()
        loss.backward()
        return loss

    def program() -> None:
        with pytest.raises(RuntimeError, match="functorch transform"):
            torch.func.vmap(function)(torch.ones(2, 3))

    assert record(program) == []
