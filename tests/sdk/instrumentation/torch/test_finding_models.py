"""Models are discovered at their first call, by one function that is installed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cirron_otel as ci
from tests.kit.sessions.spool_trees import read_spool

from .loops.parts import Training, loader


class Looking(nn.Module):
    """Notes which function `Module.__call__` is while it runs."""

    def __init__(self, seen: set[int]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(id(vars(nn.Module)["__call__"]))
        return self.layer(x)


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    def open_session() -> None:
        ci.profile(
            output_dir=str(tmp_path), frameworks=["torch"], exporters="none", join="none",
            handle_signals=False,
        )  # fmt: skip

    yield open_session
    ci.shutdown()


def test_a_modules_call_is_replaced_once(profile: Callable[[], Any]) -> None:
    """Each replacement empties the method caches of every class of modules."""
    original = vars(nn.Module)["__call__"]
    profile()
    seen = {id(vars(nn.Module)["__call__"])}
    training = Training(Looking(seen))
    for batch in loader():
        training.step(batch)
        seen.add(id(vars(nn.Module)["__call__"]))
    with torch.no_grad():
        training.evaluate(loader())
        for _ in range(3):
            Looking(seen)(torch.ones(1, 4))
            seen.add(id(vars(nn.Module)["__call__"]))
    assert len(seen) == 1
    assert seen != {id(original)}
    ci.shutdown()
    assert vars(nn.Module)["__call__"] is original


def test_module_call_replaced_by_another_tool_is_preserved(
    profile: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = vars(nn.Module)["__call__"], []

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(self))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", counted)
    profile()
    Training(nn.Sequential(nn.Linear(4, 1))).step(next(iter(loader())))
    ci.shutdown()
    assert calls == [nn.Sequential, nn.Linear, nn.MSELoss]
    assert vars(nn.Module)["__call__"] is counted
    names = [span["name"] for span in read_spool(tmp_path).spans]
    assert names.count("forward") == 1


class Waiting(nn.Module):
    """Lets another thread run in the middle of its forward."""

    def __init__(self, entered: threading.Event, leave: threading.Event) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.entered, self.leave = entered, leave

    def forward(self, x: Tensor) -> Tensor:
        self.entered.set()
        assert self.leave.wait(60)
        return self.layer(x)


class Other(nn.Linear):
    """The model of the other thread."""


def test_model_is_discovered_while_another_thread_runs_one(
    profile: Callable[[], Any], tmp_path: Path
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def train() -> None:
        try:
            batches = iter(loader())
            x, _ = next(batches)
            assert entered.wait(60)
            Other(4, 1)(x).sum().backward()
        finally:
            leave.set()

    profile()
    thread = threading.Thread(target=train)
    thread.start()
    Waiting(entered, leave)(torch.ones(1, 4)).sum().backward()
    thread.join(60)
    ci.shutdown()
    forwards = [span for span in read_spool(tmp_path).spans if span["name"] == "forward"]
    assert sorted(span["attrs"]["module"] for span in forwards) == ["Other", "Waiting"]


def test_compiled_model_with_inner_hooks_is_not_recompiled(profile: Callable[[], Any]) -> None:
    """If a module has hooks, dynamo traces its call, and guards what that reads."""
    torch.compiler.reset()
    compilations = []

    def compile_graph(graph: Any, _inputs: Any) -> Any:
        compilations.append(graph)
        return graph

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    net[0].register_forward_hook(lambda *args: args[2] + 1)
    model = torch.compile(net, backend=compile_graph, fullgraph=True)
    profile()
    for _ in range(2):
        for x, _ in loader():
            model(x).sum().backward()
        nn.Linear(4, 1)(torch.ones(1, 4)).sum().backward()
        Looking(set())(torch.ones(1, 4)).sum().backward()
    thread = threading.Thread(target=lambda: next(iter(loader())))
    thread.start()
    thread.join(60)
    model(x).sum().backward()
    assert len(compilations) == 1
