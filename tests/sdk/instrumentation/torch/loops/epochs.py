"""Training passes over loaders: complete or interrupted, consecutive, or in threads."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import torch

from . import loop, parts
from .parts import Training


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
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def break_early(ci: Any) -> Any:
    """A break after a step in the first epoch, then a complete epoch."""
    training = Training()
    loader = parts.loader()
    for epoch in range(2):
        for number, batch in enumerate(loader):
            training.step(batch)
            if epoch == 0 and number == 1:
                break
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
      data_load
""")
def break_before_use(ci: Any) -> Any:
    """`if number == 2: break` at the top of the loop: the third batch is fetched but not used."""
    training = Training()
    loader = parts.loader(8)
    for _ in range(2):
        for number, batch in enumerate(loader):
            if number == 2:
                break
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def so_many_steps(ci: Any) -> Any:
    """A fixed number of steps, then a return from within two loops."""
    training = Training()
    loader = parts.loader()

    def fit(steps: int) -> None:
        done = 0
        for _ in itertools.count():
            for batch in loader:
                training.step(batch)
                done += 1
                if done == steps:
                    return

    fit(4)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
    step[2]
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
def resumed_by_skipping(ci: Any) -> Any:
    """Resuming in the middle of an epoch: the batches already seen are fetched and skipped."""
    training = Training()
    loader = parts.loader()
    for epoch in range(2):
        for number, batch in enumerate(loader):
            if epoch == 0 and number < 2:
                continue
            training.step(batch)
    return training.losses


@loop("""
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
""")
def peek(ci: Any) -> Any:
    """next(iter(loader)) before the loop, to look at the model's output for a batch."""
    training = Training()
    loader = parts.loader()
    x, _ = next(iter(loader))
    assert training.model(x).shape == (2, 1)
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
      data_load
      forward
""")
def peek_in_the_loop(ci: Any) -> Any:
    """next(iter(other)) in every step, to look at the model's current output for a batch."""
    training = Training()
    loader, other = parts.loader(4), parts.loader()
    for batch in loader:
        training.step(batch)
        x, _ = next(iter(other))
        with torch.no_grad():
            training.losses += training.model(x).flatten().tolist()
    return training.losses


@loop("""
cirron.session
  data_load
  step[0-2]
    forward
    loss
    backward
    optimizer_step
""")
def overfit_one_batch(ci: Any) -> Any:
    """One batch, trained on repeatedly."""
    training = Training()
    batch = next(iter(parts.loader()))
    for _ in range(3):
        training.step(batch)
    return training.losses


@loop("""
cirron.session
  forward
  forward
  loss
  backward
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def warm_up(ci: Any) -> Any:
    """Warm-up calls before the loop, one with gradients that are discarded."""
    training = Training()
    training.model(torch.zeros(1, 4))
    training.loss((torch.zeros(2, 4), torch.zeros(2, 1))).backward()
    training.model.zero_grad()
    training.optimizer = torch.optim.AdamW(training.model.parameters())
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
  epoch[1]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
  eval[1]
    data_load
    forward
    loss
""")
def folds(ci: Any) -> Any:
    """Cross-validation: each fold has a model, an optimizer and loaders of its own."""
    losses = []
    for _ in range(2):
        training = Training()
        for batch in parts.loader(4):
            training.step(batch)
        training.model.eval()
        with torch.no_grad():
            training.evaluate(parts.loader(2))
        losses += training.losses
    return losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
      data_load
      forward
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def keyboard_interrupt(ci: Any) -> Any:
    """Ctrl-C in a forward, caught outside the loop; then training continues."""
    training = Training(parts.Raising(KeyboardInterrupt, at=2))
    loader = parts.loader()
    for _ in range(2):
        try:
            for batch in loader:
                training.step(batch)
        except KeyboardInterrupt:
            training.losses.append(-1.0)
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  epoch[0]
    step[0-3]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def two_threads(ci: Any) -> Any:
    """A second thread trains another model concurrently: each thread has its own numbering."""
    training, other = Training(), Training()

    def fit(one: Training, loader: Any, epochs: int) -> None:
        for _ in range(epochs):
            for batch in loader:
                one.step(batch)

    both = threading.Barrier(2)

    def beside() -> None:
        both.wait()
        fit(other, parts.loader(8), 1)

    thread = threading.Thread(target=beside)
    thread.start()
    both.wait()
    fit(training, parts.loader(6), 2)
    thread.join()
    return training.losses, other.losses
