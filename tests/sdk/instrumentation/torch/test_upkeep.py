"""The work between the phases has scopes: gradients, schedules, checkpoints and collectives."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import distributed
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import ReduceLROnPlateau, SequentialLR, StepLR

from tests.conftest import leave_out

from .judging import faults
from .loops import Loop, parts
from .loops.parts import Training
from .tools import Ours, Untraced, run
from .trees import Node, read

LOOPS: dict[str, Loop] = {}


def loop(tree: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        LOOPS[function.__name__] = Loop(function.__name__, function, tree)
        return function

    return register


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      zero_grad{module=Sequential}
      backward
      clip_grad{function=clip_grad_norm_}
      clip_grad{function=clip_grad_value_}
      optimizer_step
      scheduler_step{scheduler=StepLR}
      zero_grad{optimizer=SGD}
  scheduler_step{scheduler=ReduceLROnPlateau}
""")
def each_of_them(ci: Any) -> Any:
    """`clip_grad_norm_` was imported by name before profile()."""
    training = Training()
    schedule = StepLR(training.optimizer, 2)
    plateau = ReduceLROnPlateau(training.optimizer)
    for _ in range(2):
        for batch in parts.loader():
            loss = training.loss(batch)
            training.model.zero_grad()
            loss.backward()
            clip_grad_norm_(training.model.parameters(), 1.0)
            torch.nn.utils.clip_grad_value_(training.model.parameters(), 1.0)
            training.optimizer.step()
            schedule.step()
            training.optimizer.zero_grad()
            training.losses.append(loss.item())
    plateau.step(training.losses[-1])
    return training.losses


@loop("""
cirron.session
  step[0-2]
    zero_grad
    forward
    loss
    backward
    clip_grad
    optimizer_step
    scheduler_step
""")
def without_a_loader(ci: Any) -> Any:
    training = Training()
    schedule = SequentialLR(
        training.optimizer,
        [StepLR(training.optimizer, 2), StepLR(training.optimizer, 1)],
        milestones=[1],
    )
    points = parts.points()
    for batch in (points[0:2], points[2:4], points[4:6]):
        training.optimizer.zero_grad()
        training.backward(batch)
        clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.step()
        schedule.step()
    return training.losses


@loop("""
cirron.session
  step[0-2]
    forward
    loss
    backward
    optimizer_step
    zero_grad
""")
def without_a_loader_and_zero_grad_last(ci: Any) -> Any:
    training = Training()
    points = parts.points()
    for batch in (points[0:2], points[2:4], points[4:6]):
        training.backward(batch)
        training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      micro_step[0]
        data_load
        forward
        loss
        backward
      micro_step[1]
        data_load
        forward
        loss
        backward
        clip_grad
      optimizer_step
      zero_grad
""")
def accumulation(ci: Any) -> Any:
    training = Training()
    for number, batch in enumerate(parts.loader(8)):
        training.backward(batch, 2)
        if number % 2:
            clip_grad_norm_(training.model.parameters(), 1.0)
            training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      optimizer_step
        zero_grad
        forward
        loss
        backward
""")
def closures(ci: Any) -> Any:
    training = Training()
    for batch in parts.loader():

        def closure(batch: Any = batch) -> Any:
            training.optimizer.zero_grad()
            loss = training.loss(batch)
            loss.backward()
            training.losses.append(loss.item())
            return loss

        training.optimizer.step(closure)
    return training.losses


@loop("""
cirron.session
  checkpoint_save{function=torch.save,bytes}
  epoch[0]
    step[0-1]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
      checkpoint_save{function=torch.save,bytes}
      checkpoint_load{function=torch.load,bytes}
""")
def torch_checkpoints(ci: Any) -> Any:
    training = Training()
    torch.save(training.model.state_dict(), io.BytesIO())
    for batch in parts.loader(4):
        training.step(batch)
        file = io.BytesIO()
        torch.save(training.model.state_dict(), file)
        file.seek(0)
        training.model.load_state_dict(torch.load(file))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
    eval[0]
      data_load
      forward
      loss
    checkpoint_save
    publish
  epoch[1]
    step[0-1]
      data_load
      zero_grad
      forward
      loss
      backward
      optimizer_step
    eval[1]
      data_load
      forward
      loss
    checkpoint_save
    publish
""")
def saved_while_the_iterator_is_kept(ci: Any) -> Any:
    """The Trainer of transformers takes so many batches, evaluates and saves, all in the epoch."""
    training = Training()
    for _ in range(2):
        batches = iter(parts.loader())
        for _ in range(2):
            training.step(next(batches))
        with torch.no_grad():
            training.evaluate(parts.loader(2))
        torch.save(training.model.state_dict(), io.BytesIO())
        with ci.scope("publish"):
            pass
    return training.losses


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_upkeep_has_scopes(name: str, tmp_path: Path) -> None:
    own = LOOPS[name]
    bare = run(own, Untraced(), tmp_path)
    traced = run(own, Ours(), tmp_path)
    wrong = faults(own, traced, read(tmp_path)[0])
    assert not wrong, "\n".join(wrong)
    assert traced.result == bare.result
    assert not hasattr(torch.save, "__wrapped__")
    assert not any("Scopes" in each.__qualname__ for each in (torch.load, clip_grad_norm_))


def _scopes(name: str, train: Callable[[], None], directory: Path) -> list[Node]:
    outcome = run(Loop(name, lambda _ci: train(), ""), Ours(), directory)
    assert (outcome.error, outcome.complaints) == ("", [])
    return list(read(directory)[0].root.children)


def test_sizes_match_the_files(tmp_path: Path) -> None:
    model = parts.network()
    file = tmp_path / "weights.pt"

    def save_and_load() -> None:
        torch.save(model.state_dict(), file)
        torch.load(str(file))
        with file.open("rb") as opened:
            torch.load(opened)

    sizes = [node.attrs["bytes"] for node in _scopes("files", save_and_load, tmp_path)]
    assert sizes == [file.stat().st_size] * 3


def test_safetensors_and_distributed_checkpoints(tmp_path: Path) -> None:
    try:
        import safetensors.torch as safetensors
    except ImportError:
        leave_out("safetensors is not installed")
    from torch.distributed import checkpoint

    state = {"a": torch.ones(10), "b": torch.zeros(5, dtype=torch.int64)}
    file = tmp_path / "weights.safetensors"

    def save_and_load() -> None:
        safetensors.save_file(state, file)
        safetensors.load_file(file)
        checkpoint.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
        checkpoint.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)

    found = [
        (node.name, node.attrs["function"], node.attrs["bytes"])
        for node in _scopes("others", save_and_load, tmp_path)
    ]
    size, dcp = file.stat().st_size, "torch.distributed.checkpoint"
    assert found == [
        ("checkpoint_save", "safetensors.save_file", size),
        ("checkpoint_load", "safetensors.load_file", size),
        ("checkpoint_save", f"{dcp}.save", 80),
        ("checkpoint_load", f"{dcp}.load", 80),
    ]


def test_a_collective_that_the_host_waits_for_is_a_scope(tmp_path: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    try:

        def talk() -> None:
            distributed.all_reduce(torch.ones(4))
            for work in (
                distributed.all_reduce(torch.ones(4), async_op=True),
                distributed.all_reduce(torch.ones(4), distributed.ReduceOp.SUM, None, True),
            ):
                work.wait()
            distributed.all_gather_object([None], "text")
            distributed.barrier()

        found = [
            (node.name, node.attrs["operation"], node.attrs.get("bytes"))
            for node in _scopes("collectives", talk, tmp_path)
        ]
    finally:
        distributed.destroy_process_group()
    assert found == [
        ("collective", "all_reduce", 16),
        ("collective", "wait", None),
        ("collective", "wait", None),
        ("collective", "all_gather_object", None),
        ("collective", "barrier", None),
    ]


def test_module_imported_in_a_session_has_the_originals_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = ModuleType("theirs")
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    original = clip_grad_norm_
    weights = [torch.nn.Parameter(torch.ones(2))]

    def clip() -> None:
        if not hasattr(theirs, "clip"):
            exec("from torch.nn.utils import clip_grad_norm_ as clip", vars(theirs))
        theirs.clip(weights, 1.0)

    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        assert [node.name for node in _scopes("clip", clip, folder)] == ["clip_grad"]
        assert theirs.clip is original


def test_non_modules_in_sys_modules_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "blocked", None)
    monkeypatch.setitem(sys.modules, "without_names", object())
    assert _scopes("nothing", lambda: None, tmp_path) == []
