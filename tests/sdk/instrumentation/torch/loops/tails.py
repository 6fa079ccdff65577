"""Passes that end in the middle of an accumulation, or before the end of their data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from . import loop, parts
from .iterating import Bar
from .parts import Training

ACROSS = """
cirron.session
  epoch[0]
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
  epoch[1-2]
    step[0]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
"""
COUNTED = """
cirron.session
  epoch[0-1]
    step[0-1]
      data_load
      forward
      loss
      backward
"""


def cycle(loader: Any) -> Iterator[Any]:
    """Its batches, again and again."""
    while True:
        yield from loader


class Endless:
    """The same as an object."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.batches = iter(loader)

    def __next__(self) -> Any:
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)


def _accumulate(batches: Any, updates: int, size: int = 2) -> list[float]:
    training = Training()
    for _ in range(updates):
        for _ in range(size):
            training.backward(next(batches), size)
        training.update()
    return training.losses


@loop(ACROSS)
def accumulation_over_the_end(ci: Any) -> Any:
    """Two batches per step, from a generator that rereads a loader of three batches."""
    return _accumulate(cycle(parts.loader()), 4)


@loop(ACROSS)
def accumulation_over_the_end_by_an_object(ci: Any) -> Any:
    """Two batches per step, from an iterator class that rereads a loader of three batches."""
    return _accumulate(Endless(parts.loader()), 4)


@loop(ACROSS)
def accumulation_over_the_end_of_workers(ci: Any) -> Any:
    """Two batches per step, from a generator that rereads a loader with persistent workers."""
    return _accumulate(cycle(parts.loader(num_workers=1, persistent_workers=True)), 4)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      micro_step[0-2]
        data_load
        forward
        loss
        backward
      optimizer_step
""")
def accumulation_over_two_ends(ci: Any) -> Any:
    """Three batches per step, from a loader of one batch."""
    return _accumulate(cycle(parts.loader(2)), 2, size=3)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
    step[1]
      micro_step[0]
        data_load
        forward
        loss
        backward
""")
def accumulation_by_epochs(ci: Any) -> Any:
    """Batches are counted per epoch, with a progress bar: the last batch is a step of its own."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        for number, batch in enumerate(Bar(loader), start=1):
            training.backward(batch, 2)
            if number % 2 == 0:
                training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
    step[1]
      micro_step[0]
        data_load
        forward
        loss
        backward
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
""")
def evaluation_behind_an_accumulation(ci: Any) -> Any:
    """An evaluation begins while one accumulated batch has had no optimizer step."""
    training = Training()
    for number, batch in enumerate(parts.loader(), start=1):
        training.backward(batch, 2)
        if number % 2 == 0:
            training.update()
    with torch.no_grad():
        training.evaluate(parts.loader(4))
    return training.losses


def _descend(training: Training, batch: Any) -> None:
    training.model.zero_grad()
    training.backward(batch)
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.sub_(parameter.grad, alpha=0.1)


@loop(COUNTED)
def counted_batches_without_an_optimizer(ci: Any) -> Any:
    """The weights are changed without an optimizer, for a fixed number of batches."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        batches = iter(loader)
        for _ in range(2):
            _descend(training, next(batches))
    return training.losses


@loop(COUNTED)
def break_without_an_optimizer(ci: Any) -> Any:
    """The weights are changed without an optimizer; a break ends each pass."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        for number, batch in enumerate(loader, start=1):
            _descend(training, batch)
            if number == 2:
                break
    return training.losses


@loop("""
cirron.session
  data_load
  forward
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def model_is_built_with_a_batch(ci: Any) -> Any:
    """One batch is passed through the model without gradients, to build it: not an evaluation."""
    training = Training()
    loader = parts.loader()
    for x, _ in loader:
        with torch.no_grad():
            training.model(x)
        break
    for batch in loader:
        training.step(batch)
    return training.losses
