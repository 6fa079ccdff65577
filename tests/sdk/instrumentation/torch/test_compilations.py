"""Tracing causes no further compilation by torch: one of a real model takes minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cirron_otel as ci

from .loops.networks import Net, begin, sgd
from .loops.parts import loader

Form = Callable[[nn.Module, Any], Callable[[Tensor], Tensor]]


def _model(net: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    return torch.compile(net, backend=backend, fullgraph=True)


def _in_place(net: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    net.compile(backend=backend, fullgraph=True)
    return net


def _function(net: nn.Module, backend: Any) -> Callable[[Tensor], Tensor]:
    def predict(x: Tensor) -> Tensor:
        return net(x)

    return torch.compile(predict, backend=backend, fullgraph=True)


class Training:
    """A compiled model that counts its compilations."""

    def __init__(self, form: Form) -> None:
        begin()
        torch.compiler.reset()
        self.compilations = 0
        self.net = Net()
        self.model = form(self.net, self._compile)
        self.optimizer = sgd(self.net)

    def _compile(self, graph: Any, _inputs: Any) -> Any:
        self.compilations += 1
        return graph

    def run(self) -> int:
        """Four epochs; how often it was compiled so far."""
        criterion = nn.MSELoss()
        for _ in range(4):
            for x, y in loader():
                self.optimizer.zero_grad()
                criterion(self.model(x), y).backward()
                self.optimizer.step()
        return self.compilations


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    def open_session() -> None:
        profiler = ci.profile(
            output_dir=str(tmp_path), frameworks=["torch"], exporters="none", join="none",
            handle_signals=False,
        )  # fmt: skip
        assert "torch" in profiler.installed_hooks

    yield open_session
    ci.shutdown()


FORMS = pytest.mark.parametrize("form", [_model, _in_place, _function])


@FORMS
def test_a_model_is_compiled_as_often_as_untraced(form: Form, profile: Callable[[], Any]) -> None:
    untraced = Training(form).run()
    assert untraced == 1
    profile()
    assert Training(form).run() == untraced


@FORMS
def test_tracing_does_not_recompile_a_compiled_model(
    form: Form, profile: Callable[[], Any]
) -> None:
    training = Training(form)
    before = training.run()
    profile()
    assert training.run() == before
    ci.shutdown()
    assert training.run() == before


@FORMS
def test_a_second_model_costs_the_first_no_compilation(
    form: Form, profile: Callable[[], Any]
) -> None:
    profile()
    first = Training(form)
    before = first.run()
    nn.Linear(4, 1)(torch.ones(1, 4)).sum().backward()
    Net()(torch.ones(1, 4)).sum().backward()
    assert first.run() == before
