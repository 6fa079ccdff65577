"""Iterators that outlive the loop that reads them, and loaders that are read during a pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from . import loop, parts
from .parts import Training

PEEK_THEN_THREE = """
cirron.session
  data_load
  epoch[0-2]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
"""
PEEK_AND_FORWARD = """
cirron.session
  data_load
  forward
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
"""
VALIDATED = """
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[0]
      data_load
      forward
      data_load
      forward
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[1]
      data_load
      forward
      data_load
      forward
"""


def endless(loader: Any) -> Iterator[Any]:
    """Its batches, again and again."""
    while True:
        yield from loader


@loop("""
cirron.session
  data_load
  epoch[0-2]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
""")
def kept_test_iterator(ci: Any) -> Any:
    """examples = iter(test_loader); next(examples): `examples` stays alive."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    examples = iter(held_out)
    next(examples)
    for _ in range(3):
        for batch in loader:
            training.step(batch)
    with torch.no_grad():
        training.evaluate(held_out)
    return training.losses


@loop(PEEK_THEN_THREE)
def kept_training_iterator(ci: Any) -> Any:
    """An iterator over the training loader stays alive after one batch was fetched from it."""
    training = Training()
    loader = parts.loader()
    examples = iter(loader)
    next(examples)
    for _ in range(3):
        for batch in loader:
            training.step(batch)
    assert len(examples) == 3
    return training.losses


@loop("""
cirron.session
  data_load x2
  epoch[0-2]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def kept_iterators_in_a_list(ci: Any) -> Any:
    """Two iterators in a list; one batch of each is inspected."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    looked_at = [iter(loader), iter(held_out)]
    for each in looked_at:
        next(each)
    for _ in range(3):
        for batch in loader:
            training.step(batch)
    assert len(looked_at) == 2
    return training.losses


@loop(PEEK_AND_FORWARD)
def kept_iterator_and_forward(ci: Any) -> Any:
    """The inspected batch is passed to the model, as for a graph in TensorBoard."""
    training = Training()
    loader = parts.loader()
    examples = iter(loader)
    training.model(next(examples)[0])
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    assert len(examples) == 3
    return training.losses


@loop(PEEK_AND_FORWARD)
def kept_test_iterator_and_forward(ci: Any) -> Any:
    """A batch of another loader is inspected and passed to the model."""
    training = Training()
    loader = parts.loader()
    examples = iter(parts.loader(4))
    training.model(next(examples)[0])
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    assert len(examples) == 2
    return training.losses


@loop("""
cirron.session
  data_load
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def kept_iterator_and_break(ci: Any) -> Any:
    """An iterator that stays alive, and a break in the first epoch."""
    training = Training()
    loader = parts.loader()
    examples = iter(parts.loader(4))
    next(examples)
    for epoch in range(2):
        for number, batch in enumerate(loader):
            training.step(batch)
            if epoch == 0 and number == 1:
                break
    assert len(examples) == 2
    return training.losses


@loop("""
cirron.session
  data_load
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
def kept_iterator_and_exception(ci: Any) -> Any:
    """An iterator that stays alive, and a dataset that raises in the first epoch."""
    training = Training()
    examples = iter(parts.loader(4))
    next(examples)
    loader = DataLoader(parts.Broken(bad=2), batch_size=2)
    for _ in range(2):
        with contextlib.suppress(ValueError):
            for batch in loader:
                training.step(batch)
    assert len(examples) == 2
    return training.losses


@loop(PEEK_THEN_THREE)
def kept_iterator_and_workers(ci: Any) -> Any:
    """An iterator that stays alive, and persistent workers in training."""
    training = Training()
    loader = parts.loader(num_workers=1, persistent_workers=True)
    examples = iter(parts.loader(4))
    next(examples)
    for _ in range(3):
        for batch in loader:
            training.step(batch)
    assert len(examples) == 2
    return training.losses


@loop(PEEK_THEN_THREE, needs=("torchdata",))
def kept_iterator_of_a_stateful_loader(ci: Any) -> Any:
    """A StatefulDataLoader's iterator stays alive during three epochs of another loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    training = Training()
    examples = iter(StatefulDataLoader(parts.points(4), batch_size=2))
    next(examples)
    loader = StatefulDataLoader(parts.points(6), batch_size=2)
    for _ in range(3):
        for batch in loader:
            training.step(batch)
    assert len(examples) == 2
    return training.losses


@loop("""
cirron.session
  data_load
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  eval[1]
    data_load
    forward
    loss
    data_load
    forward
    loss
""")
def kept_iterator_and_validation(ci: Any) -> Any:
    """An iterator that stays alive, and a validation after each epoch."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    examples = iter(held_out)
    next(examples)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
        with torch.no_grad():
            training.evaluate(held_out)
    assert len(examples) == 2
    return training.losses


@loop("""
cirron.session
  data_load
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def kept_iterator_and_sanity_check(ci: Any) -> Any:
    """An iterator that stays alive, and an evaluation before the first epoch."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    examples = iter(loader)
    next(examples)
    with torch.no_grad():
        training.evaluate(held_out)
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    assert len(examples) == 3
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1-2]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def range_test_first(ci: Any) -> Any:
    """A learning rate finder over two batches, whose iterator stays alive; then two epochs."""
    training = Training()
    batches = iter(parts.loader())
    for _ in range(2):
        training.step(next(batches))
    loader = parts.loader()
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[0]
      data_load
      forward
      loss
      data_load
      forward
      loss
  epoch[1-2]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def range_test_and_validation_first(ci: Any) -> Any:
    """A learning rate finder whose iterator stays alive, then a validation, then two epochs."""
    training = Training()
    batches = iter(parts.loader())
    for _ in range(2):
        training.step(next(batches))
    with torch.no_grad():
        training.evaluate(parts.loader(4))
    loader = parts.loader()
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    assert len(batches) == 3
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0-5]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def two_iterators_in_turns(ci: Any) -> Any:
    """Two batches of one iterator, then two of another, and so on: both stay alive."""
    training = Training()
    iterators = [iter(parts.loader(8)), iter(parts.loader(8))]
    for _ in range(2):
        for batches in iterators:
            for _ in range(2):
                training.step(next(batches))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load x2
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0]
      data_load x2
      forward
      loss
      backward
      optimizer_step
      data_load
    step[1-2]
      data_load
      forward
      loss
      backward
      optimizer_step
      data_load
""")
def rehearsal(ci: Any) -> Any:
    """Old batches come from an endless generator, which is first read before the epochs."""
    training = Training()
    old = endless(parts.loader(16))
    x, y = next(old)
    loader = parts.loader()
    for _ in range(2):
        for batch in loader:
            training.step((torch.cat([batch[0], x]), torch.cat([batch[1], y])))
            x, y = next(old)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-4]
      data_load x2
      forward
      loss
      backward
      optimizer_step
""")
def zip_with_endless(ci: Any) -> Any:
    """zip of a loader and an endless generator over a shorter one."""
    training = Training()
    for (x, _), (_, y) in zip(parts.loader(10), endless(parts.loader(4)), strict=False):
        training.step((x, y))
    return training.losses


def _batches_with(evaluate: Any) -> list[float]:
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        batches = iter(loader)
        for _ in range(3):
            training.model.train()
            training.step(next(batches))
        evaluate(training)
    return training.losses


@loop(VALIDATED)
def eval_mode_after_the_fetch(ci: Any) -> Any:
    """The validation uses model.eval() and no_grad for each batch, after fetching it."""
    held_out = parts.loader(4)

    def evaluate(training: Training) -> None:
        for x, _ in held_out:
            training.model.eval()
            with torch.no_grad():
                training.losses.append(training.model(x).sum().item())

    return _batches_with(evaluate)


@loop(VALIDATED)
def eval_mode_after_the_fetch_of_workers(ci: Any) -> Any:
    """model.eval() after each fetch, with persistent workers: all validations share an iterator."""
    held_out = parts.loader(4, num_workers=1, persistent_workers=True)

    def evaluate(training: Training) -> None:
        for x, _ in held_out:
            training.model.eval()
            with torch.no_grad():
                training.losses.append(training.model(x).sum().item())

    return _batches_with(evaluate)


@loop(VALIDATED)
def no_grad_after_the_fetch(ci: Any) -> Any:
    """The validation uses no_grad after each fetch, while the training iterator stays alive."""
    held_out = parts.loader(4)

    def evaluate(training: Training) -> None:
        for x, _ in held_out:
            with torch.no_grad():
                training.losses.append(training.model(x).sum().item())

    return _batches_with(evaluate)


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[0]
      data_load
      forward
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[1]
      data_load
      forward
""")
def eval_mode_after_the_only_fetch(ci: Any) -> Any:
    """A validation of a single batch, with model.eval() after its fetch."""
    held_out = parts.loader(2)

    def evaluate(training: Training) -> None:
        for x, _ in held_out:
            training.model.eval()
            with torch.no_grad():
                training.losses.append(training.model(x).sum().item())

    return _batches_with(evaluate)


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[0-1]
      data_load
      forward
      data_load
      forward
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[2-3]
      data_load
      forward
      data_load
      forward
""")
def two_validations_after_the_fetch(ci: Any) -> Any:
    """Two consecutive validations; the model is in training mode between them."""
    loaders = parts.loader(4), parts.loader(4)

    def evaluate(training: Training) -> None:
        for held_out in loaders:
            training.model.train()
            for x, _ in held_out:
                training.model.eval()
                with torch.no_grad():
                    training.losses.append(training.model(x).sum().item())

    return _batches_with(evaluate)


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[0]
      data_load
      forward
      data_load
      forward
    step[2-3]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[1]
      data_load
      forward
      data_load
      forward
""")
def eval_mode_after_the_fetch_within_the_epoch(ci: Any) -> Any:
    """A validation with model.eval() after each fetch, after every second step of the epoch."""
    training = Training()
    held_out = parts.loader(4)
    for number, batch in enumerate(parts.loader(8), start=1):
        training.model.train()
        training.step(batch)
        if number % 2 == 0:
            for x, _ in held_out:
                training.model.eval()
                with torch.no_grad():
                    training.losses.append(training.model(x).sum().item())
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-5]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def second_loader_by_hand(ci: Any) -> Any:
    """Each iteration reads two iterators and trains on both batches separately: two steps."""
    training = Training()
    first, second = iter(parts.loader()), iter(parts.loader())
    for _ in range(3):
        training.step(next(first))
        training.step(next(second))
    return training.losses


@loop("""
cirron.session
  data_load
  eval[0]
    data_load
    forward
    data_load
    forward
""")
def kept_iterator_and_inference(ci: Any) -> Any:
    """A batch is inspected, its iterator stays alive, then inference over the same loader."""
    loader = parts.loader(4)
    model: nn.Module = parts.network().eval()
    examples = iter(loader)
    next(examples)
    results = []
    for x, _ in loader:
        with torch.no_grad():
            results.append(model(x).sum().item())
    assert len(examples) == 2
    return results
