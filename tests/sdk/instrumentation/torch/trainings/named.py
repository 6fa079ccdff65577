"""Programs that begin their trainings with `ci.training`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import cirron_otel as ci

from . import Steps, fit, loader, net, sgd, update


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
