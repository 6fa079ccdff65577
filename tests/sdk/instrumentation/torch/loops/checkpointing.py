"""Loops with activation checkpointing. `checkpoint` was imported before profile(), as usual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import loop
from .networks import (
    Block,
    Checkpointed,
    CheckpointedOnce,
    CheckpointedSequence,
    CheckpointedTwice,
    begin,
    sgd,
    weights,
)
from .parts import INPUTS, loader


def _train(model: nn.Module) -> list[float]:
    criterion, optimizer = nn.MSELoss(), sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=CheckpointedOnce}
      loss
      backward
        recompute
      optimizer_step
""")
def checkpoint_reentrant(ci: Any) -> list[float]:
    """One block with reentrant checkpointing: the inner backward is part of the outer one."""
    begin()
    return _train(CheckpointedOnce(use_reentrant=True))


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=CheckpointedOnce}
      loss
      backward
        recompute
      optimizer_step
""")
def checkpoint_non_reentrant(ci: Any) -> list[float]:
    """One block with non-reentrant checkpointing; torch ends the recomputation by an exception."""
    begin()
    return _train(CheckpointedOnce(use_reentrant=False))


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
        recompute x2
      optimizer_step
""")
def checkpoint_two_reentrant(ci: Any) -> list[float]:
    """Two blocks with reentrant checkpointing: each is recomputed separately."""
    begin()
    return _train(Checkpointed(use_reentrant=True))


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
        recompute x2
      optimizer_step
""")
def checkpoint_two_non_reentrant(ci: Any) -> list[float]:
    """Two blocks with non-reentrant checkpointing."""
    begin()
    return _train(Checkpointed(use_reentrant=False))


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
        recompute x2
      optimizer_step
""")
def checkpoint_sequence(ci: Any) -> list[float]:
    """checkpoint_sequential with three segments, the last of which is not checkpointed."""
    begin()
    return _train(CheckpointedSequence())


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
        recompute x2
      optimizer_step
""")
def checkpoint_nested_reentrant(ci: Any) -> list[float]:
    """A checkpoint within a checkpoint: the outer one is recomputed first, then the inner one."""
    begin()
    return _train(CheckpointedTwice(use_reentrant=True))


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
        recompute x2
      optimizer_step
""")
def checkpoint_nested_non_reentrant(ci: Any) -> list[float]:
    """A non-reentrant checkpoint within a non-reentrant checkpoint."""
    begin()
    return _train(CheckpointedTwice(use_reentrant=False))


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
        recompute
      optimizer_step
""")
def checkpoint_around_the_model(ci: Any) -> list[float]:
    """The loop checkpoints the complete model: checkpoint(model, x)."""
    begin()
    model, criterion = Block(), nn.MSELoss()
    optimizer = sgd(model)
    for _ in range(2):
        for x, _y in loader():
            optimizer.zero_grad()
            criterion(checkpoint(model, x, use_reentrant=False), x).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      backward
        recompute
      optimizer_step
""")
def checkpointed_loss(ci: Any) -> list[float]:
    """A function without a module, a large loss, is checkpointed."""
    begin()
    model = Block()
    optimizer = sgd(model)

    def loss_of(out: Tensor) -> Tensor:
        return torch.logsumexp(torch.sin(out) * out, dim=1).mean()

    for _ in range(2):
        for x, _y in loader():
            optimizer.zero_grad()
            checkpoint(loss_of, model(x), use_reentrant=False).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
          recompute x2
      optimizer_step
""")
def checkpoint_accumulating(ci: Any) -> list[float]:
    """Checkpointing with gradients accumulated over two batches."""
    begin()
    model, criterion = Checkpointed(use_reentrant=False), nn.MSELoss()
    optimizer = sgd(model)
    for _ in range(2):
        for i, (x, y) in enumerate(loader(8)):
            (criterion(model(x), y) / 2).backward()
            if i % 2 == 1:
                optimizer.step()
                optimizer.zero_grad()
    return weights(model)


class _Cell(nn.Module):
    """A block whose step is checkpointed, called in turn by a model that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, INPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._once, x, use_reentrant=False)

    def _once(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x))


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=_Cell} x3
      loss
      backward
        recompute x3
      optimizer_step
""")
def checkpoint_in_time(ci: Any) -> list[float]:
    """A recurrent cell called three times in a step, checkpointed each time."""
    begin()
    model, criterion = _Cell(), nn.MSELoss()
    optimizer = sgd(model)
    for _ in range(2):
        for x, _y in loader():
            optimizer.zero_grad()
            state = x
            for _time in range(3):
                state = model(state)
            criterion(state, x).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
        recompute
      optimizer_step
""")
def checkpoint_with_grad(ci: Any) -> list[float]:
    """autograd.grad through a checkpoint; the loop assigns the gradients itself."""
    begin()
    model, criterion = CheckpointedOnce(use_reentrant=False), nn.MSELoss()
    optimizer = sgd(model)
    parameters = list(model.parameters())
    for _ in range(2):
        for x, y in loader():
            gradients = torch.autograd.grad(criterion(model(x), y), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return weights(model)
