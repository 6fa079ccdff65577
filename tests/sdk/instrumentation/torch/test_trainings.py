"""Trainings of a process are detected by their optimizers: each loop with its numbers."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.torch.torch_state import TorchState
from tests.kit.sessions.spool_trees import Spool

from .one_session import recorded
from .trainings import Steps, fit, loader, net, sgd, update
from .trainings.named import NAMED, named_folds
from .trainings.several import SEVERAL, folds
from .trainings.single import ONE


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    ci.shutdown()


def numbers(spool: Spool) -> Steps:
    """The numbers of trainings of the steps, in order of time, which are those of their epochs."""
    epochs = {s["id"]: number_of(s) for s in spool.spans if s["name"] == "epoch"}
    steps = steps_of(spool)
    for step in steps:
        assert epochs.get(step["parent_id"], number_of(step)) == number_of(step)
    return runs(steps)


def steps_of(spool: Spool) -> list[Any]:
    """The steps in order of time."""
    steps = [span for span in spool.spans if span["name"] == "step"]
    return sorted(steps, key=lambda step: int(step["start_ns"]))


def number_of(span: Any) -> int:
    """The number of a span's training; 0 has no attribute."""
    number = span["attrs"].get("training", 0)
    assert span["attrs"].get("training") != 0
    return int(number)


def runs(steps: list[Any]) -> Steps:
    return [(number, len(list(each))) for number, each in groupby(map(number_of, steps))]


def begun(spool: Spool) -> list[tuple[int, Any]]:
    """The values of the marks `training` with their names; they are on the session."""
    session = next(span["id"] for span in spool.spans if span["parent_id"] is None)
    marks = sorted((m for m in spool.marks if m["name"] == "training"), key=lambda m: m["value"])
    assert {mark["span_id"] for mark in marks} <= {session}
    return [(mark["value"], mark["attrs"].get("name")) for mark in marks]


@pytest.mark.parametrize("program", ONE, ids=lambda each: each.__name__)
def test_one_training_leaves_no_trace(program: Callable[[], None], tmp_path: Path) -> None:
    spool = recorded(tmp_path, program, flush_interval=60)
    assert {number for number, _ in numbers(spool)} == {0}
    assert begun(spool) == []


@pytest.mark.parametrize(
    ("program", "expected"), SEVERAL, ids=lambda each: getattr(each, "__name__", "")
)
def test_each_training_has_its_number(
    program: Callable[[], None], expected: Steps, tmp_path: Path
) -> None:
    spool = recorded(tmp_path, program, flush_interval=60)
    assert numbers(spool) == expected
    assert begun(spool) == [(each, None) for each in range(1, max(n for n, _ in expected) + 1)]


@pytest.mark.parametrize(
    ("program", "expected", "marks"), NAMED, ids=lambda each: getattr(each, "__name__", "")
)
def test_the_program_begins_trainings(
    program: Callable[[], None], expected: Steps, marks: Any, tmp_path: Path
) -> None:
    spool = recorded(tmp_path, program, flush_interval=60)
    assert runs(steps_of(spool)) == expected
    assert begun(spool) == marks


def test_the_option_turns_the_rule_off(tmp_path: Path) -> None:
    assert numbers(recorded(tmp_path / "off", folds, trainings=False)) == [(0, 18)]
    assert numbers(recorded(tmp_path / "named", named_folds, trainings=False)) == [(0, 6), (1, 6)]


def test_a_number_with_recorded_steps_is_not_used_again(tmp_path: Path) -> None:
    """The second optimizer seems to be a new training until the first one steps as well."""

    def program() -> None:
        first, second = net(), net()
        ours, theirs = sgd(first), sgd(second)
        fit(first, ours, 1)
        for number, (batch,) in enumerate(loader()):
            update(second, theirs, batch)
            if number == 1:
                ci.flush()
                update(first, ours, batch)
        fit(net(), epochs=1)

    spool = recorded(tmp_path, program, flush_interval=60)
    assert runs(steps_of(spool)) == [(0, 3), (1, 1), (0, 2), (2, 3)]
    assert begun(spool) == [(1, None), (2, None)]


def test_many_flushes_change_nothing(tmp_path: Path) -> None:
    def program() -> None:
        for _ in range(3):
            model = net()
            optimizer = sgd(model)
            for (batch,) in loader():
                update(model, optimizer, batch)
                ci.flush()

    spool = recorded(tmp_path, program)
    assert numbers(spool) == [(0, 3), (1, 3), (2, 3)]
    assert begun(spool) == [(1, None), (2, None)]


def test_models_and_optimizers_are_released(tmp_path: Path) -> None:
    gone: list[Any] = []

    def program() -> None:
        for _ in range(2):
            model = net()
            optimizer = sgd(model)
            fit(model, optimizer, 1)
            gone.extend(map(weakref.ref, (model, optimizer, model.weight)))
            del model, optimizer
        fit(net(), epochs=1)
        gc.collect()
        assert [each() for each in gone] == [None] * 6

    recorded(tmp_path, program)


@pytest.mark.parametrize("method", ["forget", "epoch_begins"])
def test_optimizers_of_other_threads_step_while_all_are_forgotten(method: str) -> None:
    torch_state = TorchState()
    optimizers = torch_state.trainings
    thread, others = threading.get_ident(), {-1: {1, 2}, -2: {3}}
    optimizers._examined, optimizers._outside = {thread: {4}, **others}, {5, 6}
    examined, outside = optimizers._examined, optimizers._outside

    class Stepping(dict[int, Any]):
        """Another optimizer steps in another thread while one is removed."""

        def pop(self, key: int, default: Any = None) -> Any:
            for each in (*list(examined.values()), outside):
                each.add(100 + key)
            examined.setdefault(-10 - key, set())
            return super().pop(key, default)

    known = range(1, 7)
    stepping: Any = Stepping.fromkeys(known)
    torch_state.optimizers = stepping
    getattr(optimizers, method)()
    left = {"forget": {5, 6}, "epoch_begins": {1, 2, 3, 4}}[method]
    assert set(torch_state.optimizers) == left


def test_a_forked_child_counts_from_0(tmp_path: Path) -> None:
    def child() -> None:
        for _ in range(2):
            model = net()
            optimizer = sgd(model)
            for _ in loader():
                for each in model.parameters():
                    # Autograd raises an error if it had threads of its own ahead of the fork.
                    each.grad = torch.ones_like(each)
                optimizer.step()
        ci.shutdown()

    def program() -> None:
        fit(net(), epochs=1)
        fit(net(), epochs=1)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0

    spool = recorded(tmp_path, program)
    pids = {step["pid"] for step in steps_of(spool)}
    assert len(pids) == 2
    for pid in pids:
        own = [step for step in steps_of(spool) if step["pid"] == pid]
        assert runs(own) == [(0, 3), (1, 3)]
