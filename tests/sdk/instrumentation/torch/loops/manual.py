"""Loops that open scopes explicitly: these take precedence, and no scope is recorded twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from . import loop, parts
from .parts import Training


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def epochs_and_batches(ci: Any) -> Any:
    """ci.epochs, and ci.batches around the loader."""
    training = Training()
    loader = parts.loader()
    for _ in ci.epochs(range(2)):
        for batch in ci.batches(loader):
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
def epochs_by_hand(ci: Any) -> Any:
    """ci.epochs, with a plain loop over a loader and a validation inside it."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    for _ in ci.epochs(range(2)):
        for batch in loader:
            training.step(batch)
        with torch.no_grad():
            training.evaluate(held_out)
    return training.losses


@loop("""
cirron.session
  step[0-2]
    data_load
    forward
    loss
    backward
    optimizer_step
  step[0-2]
    data_load
    forward
    loss
    backward
    optimizer_step
""")
def batches_alone(ci: Any) -> Any:
    """ci.batches around the loader, without ci.epochs: the hooks open no epochs either."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        for batch in ci.batches(loader):
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      forward
      loss
      backward
      optimizer_step
""")
def batches_of_a_list(ci: Any) -> Any:
    """ci.batches over a list of batches: there is no loader, so there is no data_load."""
    training = Training()
    batches = list(zip(*(part.split(2) for part in parts.points(6).tensors), strict=True))
    for _ in ci.epochs(range(2)):
        for batch in ci.batches(batches):
            training.step(batch)
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
""")
def batches_of_a_generator(ci: Any) -> Any:
    """ci.batches over a generator that reads from a loader."""
    training = Training()
    loader = parts.loader()

    def scaled() -> Iterator[Any]:
        for x, y in loader:
            yield x * 0.5, y

    for _ in ci.epochs(range(2)):
        for batch in ci.batches(scaled()):
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    batch[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def batches_called_batch(ci: Any) -> Any:
    """ci.batches(loader, name="batch"), the name in cirron-sdk: a step under another name."""
    training = Training()
    loader = parts.loader()
    for _ in ci.epochs(range(2)):
        for batch in ci.batches(loader, name="batch"):
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      forward
      loss
      backward
      optimizer_step
""")
def epochs_without_loader(ci: Any) -> Any:
    """ci.epochs, with a loop without a loader inside it."""
    training = Training()
    whole = parts.points(6).tensors
    for _ in ci.epochs(range(2)):
        for _ in range(3):
            training.step(whole)
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-1]
      data_load
      forward
      loss
      backward
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def batches_that_accumulate(ci: Any) -> Any:
    """Gradients accumulate over three batches of ci.batches: each batch is still a step."""
    training = Training()
    loader = parts.loader()
    for _ in ci.epochs(range(2)):
        for number, batch in enumerate(ci.batches(loader), start=1):
            training.backward(batch, parts=3)
            if number % 3 == 0:
                training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    data_load
    step[0]
      forward
      loss
      backward
      optimizer_step
    data_load
    step[1]
      forward
      loss
      backward
      optimizer_step
    data_load
    step[2]
      forward
      loss
      backward
      optimizer_step
""")
def scopes_epoch_and_step(ci: Any) -> Any:
    """ci.scope("epoch") and ci.scope("step") in the loops: the fetch precedes the step."""
    training = Training()
    loader = parts.loader()
    for epoch in range(2):
        with ci.scope("epoch", index=epoch):
            for number, batch in enumerate(loader):
                with ci.scope("step", index=number):
                    training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    data_load
    step[10]
      forward
      loss
      backward
      optimizer_step
    data_load
    step[11]
      forward
      loss
      backward
      optimizer_step
""")
def scope_step(ci: Any) -> Any:
    """ci.scope("step") only, in a loop over a loader."""
    training = Training()
    for number, batch in enumerate(parts.loader(4), start=10):
        with ci.scope("step", index=number):
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  step[0-2]
    forward
    loss
    backward
    optimizer_step
""")
def scope_step_without_loader(ci: Any) -> Any:
    """ci.scope("step") in a loop without a loader."""
    training = Training()
    whole = parts.points(6).tensors
    for number in range(3):
        with ci.scope("step", index=number):
            training.step(whole)
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
""")
def scope_forward(ci: Any) -> Any:
    """ci.scope("forward") around the model's call."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        for x, y in loader:
            training.optimizer.zero_grad()
            with ci.scope("forward"):
                prediction = training.model(x)
            loss = training.criterion(prediction, y)
            loss.backward()
            training.optimizer.step()
            training.losses.append(loss.item())
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
""")
def every_scope(ci: Any) -> Any:
    """Every scope of the tree is explicit, from ci.scope("epoch") to ci.scope("optimizer_step")."""
    training = Training()
    loader = parts.loader()
    for epoch in range(2):
        with ci.scope("epoch", epoch):
            batches = iter(loader)
            for number in range(len(loader)):
                with ci.scope("step", number):
                    with ci.scope("data_load"):
                        x, y = next(batches)
                    with ci.scope("forward"):
                        prediction = training.model(x)
                    with ci.scope("loss"):
                        loss = training.criterion(prediction, y)
                    with ci.scope("backward"):
                        training.optimizer.zero_grad()
                        loss.backward()
                    with ci.scope("optimizer_step"):
                        training.optimizer.step()
                training.losses.append(loss.item())
    return training.losses


@loop("""
cirron.session
  fit{run=a}
    epoch[0-1]
      step[0-2]
        data_load
        augment
        propagate
          forward
          loss
          backward
        optimizer_step
        log
""")
def scopes_of_other_names(ci: Any) -> Any:
    """Scopes of other names around the loop and in its steps."""
    training = Training()
    loader = parts.loader()
    with ci.scope("fit", run="a"):
        for _ in range(2):
            for x, y in loader:
                with ci.scope("augment"):
                    noisy = x + 0.01
                training.optimizer.zero_grad()
                with ci.scope("propagate"):
                    training.backward((noisy, y))
                training.optimizer.step()
                with ci.scope("log"):
                    training.losses.append(training.losses[-1])
    return training.losses


@loop("""
cirron.session
  round
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
  round
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
""")
def decorated_functions(ci: Any) -> Any:
    """A scope with another name decorates a function that trains and validates."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(2)

    @ci.scope("round")
    def train() -> None:
        for batch in loader:
            training.step(batch)
        with torch.no_grad():
            training.evaluate(held_out)

    for _ in range(2):
        train()
    return training.losses
