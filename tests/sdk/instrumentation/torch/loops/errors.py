"""Loops that continue after an exception."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from . import loop
from .networks import (
    CheckpointedOnce,
    Net,
    begin,
    sgd,
    weights,
)
from .parts import loader


def _at(calls: list[int], error: type[Exception] = RuntimeError) -> Callable[[Any, Any, Any], Any]:
    """A hook, counted from 0, that raises at these calls and else gives its last argument."""
    count = -1

    def hook(_module: Any, _inputs: Any, value: Any) -> Any:
        nonlocal count
        count += 1
        if count in calls:
            raise error("raised by the loop")
        return value

    return hook


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward!
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def error_in_forward(ci: Any) -> list[float]:
    """The forward of the second batch raises; the loop continues with the next batch."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    model.activation.register_forward_hook(_at([1, 4]))
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            try:
                out = model(x)
            except RuntimeError:
                continue
            criterion(out, y).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward!
    step[1-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def error_in_first_forward(ci: Any) -> list[float]:
    """The forward of the first batch raises; the pass still counts as training."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    model.activation.register_forward_hook(_at([0, 3]))
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            try:
                out = model(x)
            except RuntimeError:
                continue
            criterion(out, y).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward!
      forward
      loss
      backward
      optimizer_step
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def out_of_memory(ci: Any) -> list[float]:
    """The forward of the second batch runs out of memory and is retried with half the batch."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    model.activation.register_forward_hook(_at([1, 5], torch.OutOfMemoryError))
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            try:
                loss = criterion(model(x), y)
            except torch.OutOfMemoryError:
                loss = criterion(model(x[:1]), y[:1])
            loss.backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss!
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def error_in_criterion(ci: Any) -> list[float]:
    """The criterion raises in the second batch, because the shapes do not match."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for i, (x, y) in enumerate(loader()):
            optimizer.zero_grad()
            with contextlib.suppress(RuntimeError):
                criterion(model(x), y if i != 1 else torch.zeros(3, 1)).backward()
                optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward!
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def error_in_backward(ci: Any) -> list[float]:
    """The second backward raises, so it yields no gradient for a later step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    raising = _at([1, 4])
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            out = model(x)
            out.register_hook(lambda gradient: raising(None, None, gradient))
            try:
                criterion(out, y).backward()
            except RuntimeError:
                continue
            optimizer.step()
    return weights(model)


class _Raising(torch.optim.SGD):
    """Raises in the second of three steps."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.steps % 3 == 2:
            raise RuntimeError("no step")
        return super().step(closure)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step!
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def error_in_optimizer(ci: Any) -> list[float]:
    """The second optimizer step raises; the step ends nevertheless."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = _Raising(model.parameters(), lr=0.05)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            with contextlib.suppress(RuntimeError):
                optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load!
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def error_in_collate(ci: Any) -> list[float]:
    """collate_fn raises for the second batch, which ends the pass; another pass follows."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    raising = _at([1])
    batches = loader(collate_fn=lambda samples: default_collate(raising(None, None, samples)))
    for _ in range(2):
        with contextlib.suppress(RuntimeError):
            for x, y in batches:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward!
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def error_ends_the_pass(ci: Any) -> list[float]:
    """The forward raises and ends the loop; the program catches the error and trains again."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    model.activation.register_forward_hook(_at([1]))
    batches = loader()
    for _ in range(2):
        with contextlib.suppress(RuntimeError):
            for x, y in batches:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
        recompute
      optimizer_step
    step[1]
      data_load
      forward
      loss
      backward!
        recompute!
    step[2]
      data_load
      forward
      loss
      backward
        recompute
      optimizer_step
""")
def error_in_recomputation(ci: Any) -> list[float]:
    """The recomputation of a checkpoint raises, in the second backward."""
    begin()
    model, criterion = CheckpointedOnce(use_reentrant=False), nn.MSELoss()
    optimizer = sgd(model)
    raising = _at([3, 9])
    model.block.register_forward_pre_hook(lambda module, args: raising(module, None, args))
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            with contextlib.suppress(RuntimeError):
                criterion(model(x), y).backward()
                optimizer.step()
    return weights(model)
