"""Programs of several trainings, which the hooks detect."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import torch
from torch.nn import Module
from torch.optim import SGD

import cirron_otel as ci

from . import STEPS, Steps, fit, loader, net, sgd, update
from .single import gan


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


def folds_whose_first_step_is_skipped() -> None:
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for number, (batch,) in enumerate(loader()):
            ci.flush()  # seals the previous step
            optimizer.zero_grad()
            scaler.scale(model(batch).mean() * (1 if number else float("inf"))).backward()
            scaler.step(optimizer)
            scaler.update()


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


def folds_whose_epochs_are_in_threads() -> None:
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        for _ in range(2):
            thread = threading.Thread(target=fit, args=(model, optimizer, 1))
            thread.start()
            thread.join()


def folds_whose_epochs_are_in_threads_with_new_ids() -> None:
    with ExitStack() as threads:
        for _ in range(2):
            model = net()
            optimizer = sgd(model)
            for _ in range(2):
                thread = threads.enter_context(ThreadPoolExecutor(1))
                thread.submit(fit, model, optimizer, 1).result()


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
    (folds_whose_first_step_is_skipped, [(0, 3), (1, 3)]),
    (folds_after_peeking, [(0, 3), (1, 3)]),
    (folds_in_tasks, [(0, 3), (1, 3)]),
    (folds_in_threads, [(0, 3), (1, 3)]),
    (folds_whose_epochs_are_in_threads, [(0, 6), (1, 6)]),
    (folds_whose_epochs_are_in_threads_with_new_ids, [(0, 6), (1, 6)]),
]
