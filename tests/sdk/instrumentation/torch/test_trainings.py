"""Trainings of a process are told apart by their optimizers: each loop with its numbers."""

from __future__ import annotations

import asyncio
import copy
import gc
import multiprocessing
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Linear, Module, Sequential
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci
from tests.kit.sessions.spool_trees import Spool

from .one_session import recorded

Steps = list[tuple[int, int]]
"""Numbers of trainings, each with the number of consecutive steps."""
STEPS = 3
"""Steps of one pass over a loader."""


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    ci.shutdown()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(2 * STEPS, 4)), batch_size=2)


def net(out: int = 1) -> Linear:
    return Linear(4, out)


def sgd(*models: Module) -> SGD:
    return SGD([each for model in models for each in model.parameters()], lr=0.01)


def update(model: Module, optimizer: Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def fit(model: Module, optimizer: Optimizer | None = None, epochs: int = 2) -> None:
    optimizer = optimizer or sgd(model)
    for _ in range(epochs):
        for (batch,) in loader():
            update(model, optimizer, batch)


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


# --- loops that are one training ------------------------------------------------------------------


def usual() -> None:
    fit(net(), epochs=3)


def optimizer_of_each_epoch() -> None:
    model = net()
    for _ in range(3):
        fit(model, sgd(model), epochs=1)
        gc.collect()


def checkpoint_loaded() -> None:
    model = net()
    optimizer = Adam(model.parameters())
    fit(model, optimizer, epochs=1)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    model.load_state_dict(weights)
    optimizer = Adam(model.parameters())
    optimizer.load_state_dict(state)
    fit(model, optimizer, epochs=1)


def unfrozen() -> None:
    model = Sequential(net(4), net())
    fit(model, sgd(model[1]), epochs=1)
    fit(model, sgd(model), epochs=1)


def other_layers_of_the_model() -> None:
    model = Sequential(net(4), net())
    fit(model, sgd(model[1]), epochs=1)
    fit(model, sgd(model[0]), epochs=1)


def learning_rate_test_of_the_model() -> None:
    model = net()
    weights = copy.deepcopy(model.state_dict())
    fit(model, epochs=1)
    model.load_state_dict(weights)
    fit(model)


def _gan(*, generator_first: bool, alone: int = 0, each: int = 1) -> None:
    generator, critic = net(4), net()
    ours, theirs = sgd(generator), sgd(critic)
    fit(critic, theirs, alone)
    for _ in range(2):
        for number, (batch,) in enumerate(loader()):
            both = Sequential(generator, critic)
            if generator_first:
                update(both, ours, batch)
            update(critic, theirs, batch)
            if not generator_first and number % each == 0:
                update(both, ours, batch)


def gan() -> None:
    _gan(generator_first=False)


def gan_with_five_critic_steps() -> None:
    _gan(generator_first=False, each=5)


def generator_joins_later() -> None:
    _gan(generator_first=False, alone=2)


def generator_joins_later_and_steps_first() -> None:
    _gan(generator_first=True, alone=2)


def second_optimizer_joins_some_steps_later() -> None:
    first, second = net(), net()
    ours, theirs = sgd(first), sgd(second)
    fit(first, ours, 1)
    for number, (batch,) in enumerate(loader()):
        update(second, theirs, batch)
        if number:
            update(first, ours, batch)


def tasks_in_turn_by_batches() -> None:
    first, second = net(), net()
    ours, theirs = sgd(first), sgd(second)
    for _ in range(2):
        for (one,), (other,) in zip(loader(), loader(), strict=True):
            update(first, ours, one)
            update(second, theirs, other)


def ensemble_trained_together() -> None:
    models = [net() for _ in range(3)]
    optimizers = [sgd(model) for model in models]
    for _ in range(2):
        for (batch,) in loader():
            for model, optimizer in zip(models, optimizers, strict=True):
                update(model, optimizer, batch)


def an_optimizer_for_each_parameter() -> None:
    model = Sequential(net(4), net())
    optimizers = [SGD([each], lr=0.01) for each in model.parameters()]
    for _ in range(2):
        for (batch,) in loader():
            model(batch).mean().backward()
            for optimizer in optimizers:
                optimizer.step()


def optimizer_in_backward() -> None:
    model = Sequential(net(4), net())
    for each in model.parameters():
        optimizer = SGD([each], lr=0.01)
        each.register_post_accumulate_grad_hook(lambda _, own=optimizer: own.step())
    for _ in range(2):
        for (batch,) in loader():
            model(batch).mean().backward()


def two_parts_in_epochs_of_the_program() -> None:
    first, second = net(), net()
    ours, theirs = sgd(first), sgd(second)
    for _ in ci.epochs(range(2)):
        fit(first, ours, 1)
        fit(second, theirs, 1)


def q_learning() -> None:
    policy = net()
    target = copy.deepcopy(policy)
    optimizer = sgd(policy)
    for number in range(6):
        with torch.no_grad():
            wanted = target(torch.ones(2, 4))
        optimizer.zero_grad()
        (policy(torch.ones(2, 4)) - wanted).square().mean().backward()
        optimizer.step()
        if number % 2:
            target.load_state_dict(policy.state_dict())


def agents_in_turn_without_loader() -> None:
    agents = [(model, sgd(model)) for model in (net(), net())]
    for (model, optimizer), _ in zip(cycle(agents), range(6), strict=False):
        update(model, optimizer, torch.ones(2, 4))


def folds_without_loader() -> None:
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            update(model, optimizer, torch.ones(2, 4))


def policy_without_loader_and_models_with_loader() -> None:
    policy = net()
    optimizer = sgd(policy)
    update(policy, optimizer, torch.ones(2, 4))
    fit(net(), epochs=1)
    update(policy, optimizer, torch.ones(2, 4))


def tasks_that_train_at_the_same_time() -> None:
    async def task() -> None:
        model = net()
        optimizer = sgd(model)
        for (batch,) in loader():
            update(model, optimizer, batch)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(task(), task())

    asyncio.run(both())


ONE = [
    usual, optimizer_of_each_epoch, checkpoint_loaded, unfrozen, other_layers_of_the_model,
    learning_rate_test_of_the_model, gan, gan_with_five_critic_steps, generator_joins_later,
    generator_joins_later_and_steps_first, second_optimizer_joins_some_steps_later,
    tasks_in_turn_by_batches, ensemble_trained_together, an_optimizer_for_each_parameter,
    optimizer_in_backward, two_parts_in_epochs_of_the_program, q_learning,
    agents_in_turn_without_loader, folds_without_loader,
    policy_without_loader_and_models_with_loader, tasks_that_train_at_the_same_time,
]  # fmt: skip


@pytest.mark.parametrize("program", ONE, ids=lambda each: each.__name__)
def test_one_training_leaves_no_trace(program: Callable[[], None], tmp_path: Path) -> None:
    spool = recorded(tmp_path, program, flush_interval=60)
    assert {number for number, _ in numbers(spool)} == {0}
    assert begun(spool) == []


# --- loops of several trainings -------------------------------------------------------------------


def folds() -> None:
    for _ in range(3):
        fit(net())


def folds_whose_models_are_all_alive() -> None:
    for model in [net() for _ in range(3)]:
        fit(model, epochs=1)


def folds_of_one_copied_model() -> None:
    model = net()
    for _ in range(2):
        fit(copy.deepcopy(model), epochs=1)
        gc.collect()


def sweep() -> None:
    for rate in range(1, 21):
        model = net()
        fit(model, SGD(model.parameters(), lr=rate / 100), epochs=1)


def learning_rate_test_of_a_copy() -> None:
    model = net()
    fit(copy.deepcopy(model), epochs=1)
    fit(model)


def ensemble() -> None:
    kept = []
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        fit(model, optimizer)
        kept.append((model, optimizer))


def teacher_then_student() -> None:
    teacher, student = net(), net()
    fit(teacher, epochs=1)
    optimizer = sgd(student)
    for (batch,) in loader():
        with torch.no_grad():
            wanted = teacher(batch)
        optimizer.zero_grad()
        (student(batch) - wanted).square().mean().backward()
        optimizer.step()


class _Distilled(Module):
    def __init__(self, teacher: Module) -> None:
        super().__init__()
        self.teacher, self.student = teacher, net()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.student(batch) - self.teacher(batch).detach()


def teacher_inside_the_model_of_the_student() -> None:
    teacher = net()
    fit(teacher, epochs=1)
    model = _Distilled(teacher)
    fit(model, sgd(model.student), epochs=1)


def fold_whose_optimizer_is_recreated() -> None:
    for _ in range(2):
        model = net()
        for _ in range(2):
            fit(model, sgd(model), epochs=1)


def gans_one_after_another() -> None:
    for _ in range(2):
        gan()


def tasks_in_turn_by_epochs() -> None:
    first, second = net(), net()
    ours, theirs = sgd(first), sgd(second)
    for _ in range(2):
        fit(first, ours, 1)
        fit(second, theirs, 1)


def trained_together_after_being_trained_alone() -> None:
    first, second = net(), net()
    ours, theirs = sgd(first), sgd(second)
    fit(first, ours, 1)
    fit(second, theirs, 1)
    for _ in range(2):
        for (batch,) in loader():
            update(first, ours, batch)
            update(second, theirs, batch)


def folds_with_evaluations() -> None:
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            model.train()
            fit(model, optimizer, 1)
            model.eval()
            with torch.no_grad():
                for (batch,) in loader():
                    model(batch)


def folds_with_frozen_statistics() -> None:
    for _ in range(2):
        fit(net().eval(), epochs=1)


def folds_with_a_step_ahead_of_the_loop() -> None:
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        update(model, optimizer, torch.ones(2, 4))
        fit(model, optimizer, 1)


def folds_in_epochs_of_the_program() -> None:
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        for _ in ci.epochs(range(2)):
            for _ in ci.batches(range(STEPS)):
                update(model, optimizer, torch.ones(2, 4))


def folds_that_accumulate() -> None:
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            for number, (batch,) in enumerate(loader()):
                model(batch).mean().backward()
                if number == STEPS - 1:
                    optimizer.step()
                    optimizer.zero_grad()


def folds_after_peeking() -> None:
    for _ in range(2):
        model = net()
        model(next(iter(loader()))[0])
        fit(model, epochs=1)


def folds_in_tasks() -> None:
    async def fold() -> None:
        fit(net(), epochs=1)

    for _ in range(2):
        asyncio.run(fold())


def folds_in_threads() -> None:
    for _ in range(2):
        thread = threading.Thread(target=lambda: fit(net(), epochs=1))
        thread.start()
        thread.join()


SEVERAL: list[tuple[Callable[[], None], Steps]] = [
    (folds, [(0, 6), (1, 6), (2, 6)]),
    (folds_whose_models_are_all_alive, [(0, 3), (1, 3), (2, 3)]),
    (folds_of_one_copied_model, [(0, 3), (1, 3)]),
    (sweep, [(number, 3) for number in range(20)]),
    (learning_rate_test_of_a_copy, [(0, 3), (1, 6)]),
    (ensemble, [(0, 6), (1, 6)]),
    (teacher_then_student, [(0, 3), (1, 3)]),
    (teacher_inside_the_model_of_the_student, [(0, 3), (1, 3)]),
    (fold_whose_optimizer_is_recreated, [(0, 6), (1, 6)]),
    (gans_one_after_another, [(0, 6), (1, 6)]),
    (tasks_in_turn_by_epochs, [(0, 3), (1, 3), (0, 3), (1, 3)]),
    (trained_together_after_being_trained_alone, [(0, 3), (1, 3), (0, 6)]),
    (folds_with_evaluations, [(0, 6), (1, 6)]),
    (folds_with_frozen_statistics, [(0, 3), (1, 3)]),
    (folds_with_a_step_ahead_of_the_loop, [(0, 5), (1, 3)]),
    (folds_in_epochs_of_the_program, [(0, 6), (1, 6)]),
    (folds_that_accumulate, [(0, 2), (1, 2)]),
    (folds_after_peeking, [(0, 3), (1, 3)]),
    (folds_in_tasks, [(0, 3), (1, 3)]),
    (folds_in_threads, [(0, 3), (1, 3)]),
]


@pytest.mark.parametrize(
    ("program", "expected"), SEVERAL, ids=lambda each: getattr(each, "__name__", "")
)
def test_each_training_has_its_number(
    program: Callable[[], None], expected: Steps, tmp_path: Path
) -> None:
    spool = recorded(tmp_path, program, flush_interval=60)
    assert numbers(spool) == expected
    assert begun(spool) == [(each, None) for each in range(1, max(n for n, _ in expected) + 1)]


# --- with ci.training -----------------------------------------------------------------------------


def named_folds() -> None:
    for fold in range(2):
        with ci.training(f"fold {fold}"):
            fit(net())


def names_without_a_block() -> None:
    for name in ("a", "b"):
        ci.training(name)
        fit(net())


def teacher_and_student_in_one_block() -> None:
    with ci.training("distillation"):
        fit(net(), epochs=1)
        fit(net(), epochs=1)
    fit(net(), epochs=1)


def same_model_in_each_block() -> None:
    model = net()
    for name in ("warm", "cold"):
        with ci.training(name):
            fit(model, epochs=1)


def probe_of_a_training() -> None:
    model, probe = net(), net()
    optimizer = sgd(model)
    for _ in range(2):
        fit(model, optimizer, 1)
        with ci.training("probe"):
            fit(probe, epochs=1)
    fit(model, optimizer, 1)
    fit(net(), epochs=1)


def optimizer_goes_on_after_its_block() -> None:
    model = net()
    optimizer = sgd(model)
    with ci.training("first"):
        fit(model, optimizer, 1)
    fit(model, optimizer, 2)


def named_after_a_batch_was_fetched() -> None:
    model = net()
    model(next(iter(loader()))[0])
    ci.training("only")
    fit(model, epochs=1)


def named_without_loader() -> None:
    for fold in range(2):
        with ci.training(f"fold {fold}"):
            model = net()
            optimizer = sgd(model)
            for _ in range(3):
                update(model, optimizer, torch.ones(2, 4))


def named_in_the_middle_of_a_pass() -> None:
    model = net()
    optimizer = sgd(model)
    for number, (batch,) in enumerate(loader()):
        update(model, optimizer, batch)
        if number == 1:
            ci.training("rest")


NAMED: list[tuple[Callable[[], None], Steps, list[tuple[int, Any]]]] = [
    (named_folds, [(0, 6), (1, 6)], [(0, "fold 0"), (1, "fold 1")]),
    (names_without_a_block, [(0, 6), (1, 6)], [(0, "a"), (1, "b")]),
    (teacher_and_student_in_one_block, [(0, 6), (1, 3)], [(0, "distillation"), (1, None)]),
    (same_model_in_each_block, [(0, 3), (1, 3)], [(0, "warm"), (1, "cold")]),
    (
        probe_of_a_training,
        [(0, 3), (1, 3), (0, 3), (2, 3), (0, 3), (3, 3)],
        [(1, "probe"), (2, "probe"), (3, None)],
    ),
    (optimizer_goes_on_after_its_block, [(0, 3), (1, 6)], [(0, "first"), (1, None)]),
    (named_after_a_batch_was_fetched, [(0, 3)], [(0, "only")]),
    (named_without_loader, [(0, 3), (1, 3)], [(0, "fold 0"), (1, "fold 1")]),
    (named_in_the_middle_of_a_pass, [(0, 2), (1, 1)], [(1, "rest")]),
]


@pytest.mark.parametrize(
    ("program", "expected", "marks"), NAMED, ids=lambda each: getattr(each, "__name__", "")
)
def test_the_program_begins_trainings(
    program: Callable[[], None], expected: Steps, marks: Any, tmp_path: Path
) -> None:
    spool = recorded(tmp_path, program, flush_interval=60)
    assert runs(steps_of(spool)) == expected
    assert begun(spool) == marks


# --- options, flushes, processes ------------------------------------------------------------------


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


def test_a_forked_child_counts_from_0(tmp_path: Path) -> None:
    def child() -> None:
        fit(net(), epochs=1)
        fit(net(), epochs=1)
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
