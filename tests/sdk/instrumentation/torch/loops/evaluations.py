"""Passes that evaluate, and their distinction from passes that train."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from . import loop, parts
from .parts import Training


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
def validation(ci: Any) -> Any:
    """A validation under no_grad after each epoch."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    for _ in range(2):
        training.model.train()
        for batch in loader:
            training.step(batch)
        training.model.eval()
        with torch.no_grad():
            training.evaluate(held_out)
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
def functions_of_a_script(ci: Any) -> Any:
    """train() and a decorated evaluate() are functions; the loaders have workers."""
    training = Training()
    options = {"num_workers": 1, "persistent_workers": True}
    loader, held_out = parts.loader(**options), parts.loader(4, **options)

    def train(model: nn.Module, batches: Any) -> None:
        model.train()
        for batch in batches:
            training.step(batch)

    @torch.inference_mode()
    def evaluate(model: nn.Module, batches: Any) -> float:
        model.eval()
        return training.evaluate(batches)

    for _ in range(2):
        train(training.model, loader)
        evaluate(training.model, held_out)
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
    step[2-3]
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
    step[4]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def validation_within_the_epoch(ci: Any) -> Any:
    """A validation in inference mode after every second step."""
    training = Training()
    loader, held_out = parts.loader(10), parts.loader(4)
    for number, batch in enumerate(loader, start=1):
        training.step(batch)
        if number % 2 == 0:
            training.model.eval()
            with torch.inference_mode():
                training.evaluate(held_out)
            training.model.train()
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
def validation_with_gradients(ci: Any) -> Any:
    """A validation with model.eval() only: gradients remain enabled."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    for _ in range(2):
        training.model.train()
        for batch in loader:
            training.step(batch)
        training.model.eval()
        training.evaluate(held_out)
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
    data_load
    forward
""")
def no_grad_inside(ci: Any) -> Any:
    """A validation with no_grad inside its loop; the model stays in training mode."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    for batch in loader:
        training.step(batch)
    for x, y in held_out:
        with torch.no_grad():
            training.losses.append((training.model(x) - y).square().mean().item())
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
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
    step[1]
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
def no_grad_inside_within_the_epoch(ci: Any) -> Any:
    """A validation after every step, with model.eval(), and no_grad inside its loop."""
    training = Training()
    loader, held_out = parts.loader(4), parts.loader(4)
    for batch in loader:
        training.model.train()
        training.step(batch)
        training.model.eval()
        for other in held_out:
            with torch.no_grad():
                training.losses.append(training.loss(other).item())
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
    data_load
    forward
    loss
""")
def training_error(ci: Any) -> Any:
    """An evaluation after each epoch, over the same loader as the training."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        for batch in loader:
            training.step(batch)
        with torch.no_grad():
            training.evaluate(loader)
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
def trained_in_eval_mode(ci: Any) -> Any:
    """Training with model.eval() from the first batch on, to freeze the batch norm."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    training = Training(model.eval())
    loader = parts.loader()
    for _ in range(2):
        for batch in loader:
            training.step(batch)
    assert not model.training
    return None


@loop("""
cirron.session
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
  epoch[0]
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
def sanity_check(ci: Any) -> Any:
    """A validation before training begins, and another one after it."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    with torch.no_grad():
        training.evaluate(held_out)
    for batch in loader:
        training.step(batch)
    with torch.no_grad():
        training.evaluate(held_out)
    return training.losses


@loop("""
cirron.session
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def sanity_check_with_gradients(ci: Any) -> Any:
    """A validation with model.eval() only, before any model was trained."""
    training = Training()
    loader, held_out = parts.loader(), parts.loader(4)
    training.model.eval()
    training.evaluate(held_out)
    training.model.train()
    for batch in loader:
        training.step(batch)
    return training.losses


@loop("""
cirron.session
  eval[0]
    data_load
    forward
    data_load
    forward
    data_load
    forward
""")
def inference(ci: Any) -> Any:
    """Inference only, over a loader."""
    model = parts.network().eval()
    with torch.inference_mode():
        return [model(x).sum().item() for x, _ in parts.loader()]


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
""")
def forward_alone(ci: Any) -> Any:
    """Forwards only, with gradients and in training mode: not an evaluation."""
    model = parts.network()
    return [model(x).sum().item() for x, _ in parts.loader()]


@loop("""
cirron.session
  eval[0]
    data_load
    data_load
    data_load
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def statistics_first(ci: Any) -> Any:
    """A pass under no_grad that computes the mean of the data, without a model."""
    training = Training()
    loader = parts.loader()
    with torch.no_grad():
        mean = sum(x.sum().item() for x, _ in loader) / 24
    for x, y in loader:
        training.step((x - mean, y))
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
def validation_in_a_thread(ci: Any) -> Any:
    """A copy of the model is validated in a second thread while training continues."""
    training, other = Training(), Training()
    loader, held_out = parts.loader(), parts.loader(4)
    for batch in loader:
        training.step(batch)
    other.model.load_state_dict(training.model.state_dict())

    def validate() -> None:
        other.model.eval()
        with torch.no_grad():
            other.evaluate(held_out)

    thread = threading.Thread(target=validate)
    thread.start()
    for batch in loader:
        training.step(batch)
    thread.join()
    return training.losses, other.losses
