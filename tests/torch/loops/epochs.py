"""Passes over loaders: training or evaluation, whole or broken off, one after the other."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import torch
from torch import nn

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
    """A break after a step in the first epoch, then a full one."""
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
    """`if number == 2: break` at the top: the third batch is fetched and not used."""
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
    """A number of steps in all: a return from within two loops."""
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
    """Resumed in the middle of an epoch: the batches that were seen are fetched and skipped."""
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
    """next(iter(loader)) before the loop, to see what the model makes of a batch."""
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
    """next(iter(other)) in every step, to show what the model makes of a batch by now."""
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
    """One batch, trained on again and again."""
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
    """Warm-up calls before the loop, one with gradients that are thrown away."""
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
    """train() and a decorated evaluate() as functions, the loaders with workers."""
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
    """A validation with model.eval() alone: gradients stay on."""
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
    """A validation whose no_grad stands inside its loop, the model in training mode all along."""
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
    """A validation after every step with model.eval(), no_grad inside its loop."""
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
    """After each epoch an evaluation over the very loader that was trained on."""
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
    """Training with model.eval() from the first batch on, to freeze batch norm."""
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
    """A validation before training begins, and one behind it."""
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
    """A validation before training with model.eval() alone, when no model was trained yet."""
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
    """Inference alone, over a loader."""
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
    """Forwards alone, with gradients and in training mode: not an evaluation."""
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
    """A pass under no_grad that takes the mean of the data, without a model."""
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
    """Ctrl-C in a forward, caught outside the loop; then training goes on."""
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
    """A second thread trains another model meanwhile: each thread counts for itself."""
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
    """A copy of the model is validated in a second thread while training goes on."""
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
