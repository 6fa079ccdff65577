"""Loops by their optimizers: order, number, closures, wrappers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import loop
from .networks import (
    Discriminator,
    Generator,
    Net,
    adam,
    begin,
    sgd,
    weights,
)
from .parts import INPUTS, loader


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
def zero_grad_last(ci: Any) -> list[float]:
    """zero_grad after the step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            criterion(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


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
def zero_grad_between(ci: Any) -> list[float]:
    """zero_grad(set_to_none=False) of the model, between the loss and its backward."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            loss = criterion(model(x), y)
            model.zero_grad(set_to_none=False)
            loss.backward()
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
      optimizer_step{optimizer=Adam}
""")
def adam_fused(ci: Any) -> list[float]:
    """Adam, fused."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model, fused=True)
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
      forward
      loss
      backward
      optimizer_step{optimizer=Adam}
""")
def adam_foreach(ci: Any) -> list[float]:
    """Adam, foreach."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model, foreach=True)
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
      forward
      loss
      backward
      optimizer_step
""")
def clipped(ci: Any) -> list[float]:
    """clip_grad_norm_ before the step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Discriminator}
      loss
      forward{module=Generator}
      forward{module=Discriminator}
      loss
      backward
      optimizer_step{optimizer=Adam}
      forward{module=Discriminator}
      loss
      backward
      optimizer_step{optimizer=SGD}
""")
def gan(ci: Any) -> list[float]:
    """A GAN over a loader: two optimizers in each iteration are one step."""
    begin()
    generator, discriminator, criterion = Generator(), Discriminator(), nn.BCEWithLogitsLoss()
    of_generator, of_discriminator = sgd(generator), adam(discriminator)
    for _ in range(2):
        for real, _y in loader():
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            of_discriminator.zero_grad()
            on_real = criterion(discriminator(real), ones)
            fake = generator(torch.randn_like(real))
            on_fake = criterion(discriminator(fake.detach()), zeros)
            (on_real + on_fake).backward()
            of_discriminator.step()
            of_generator.zero_grad()
            criterion(discriminator(fake), ones).backward()
            of_generator.step()
    return weights(generator, discriminator)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step{optimizer=SGD}
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step{optimizer=Adam}
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step{optimizer=SGD}
""")
def alternating(ci: Any) -> list[float]:
    """One optimizer for each part of the model, used in turn."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizers = [sgd(model.hidden), adam(model.head)]
    for _ in range(2):
        for i, (x, y) in enumerate(loader()):
            model.zero_grad()
            criterion(model(x), y).backward()
            optimizers[i % 2].step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      optimizer_step{optimizer=LBFGS}
        forward
        loss
        backward
        forward
        loss
        backward
""")
def lbfgs(ci: Any) -> list[float]:
    """LBFGS, which calls its closure twice in each step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    for _ in range(2):
        for x, y in loader():

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return weights(model)


@loop("""
cirron.session
  step[0-2]
    optimizer_step{optimizer=LBFGS}
      forward
      loss
      backward
      forward
      loss
      backward
""")
def lbfgs_without_loader(ci: Any) -> list[float]:
    """LBFGS on all of the data at once, without a loader: each call is a step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    x, y = torch.randn(6, INPUTS), torch.randn(6, 1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      optimizer_step
        forward
        loss
        backward
""")
def step_with_closure(ci: Any) -> list[float]:
    """SGD with a closure, as in Lightning."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
        optimizer_step x4
""")
def optimizer_in_backward(ci: Any) -> list[float]:
    """Each parameter has an optimizer, which steps in the backward once its gradient is ready."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizers = {
        parameter: torch.optim.SGD([parameter], lr=0.05) for parameter in model.parameters()
    }

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        for x, y in loader():
            criterion(model(x), y).backward()
    return weights(model)


class _Lookahead(torch.optim.Optimizer):
    """Goes half of the way that another optimizer goes."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:
        assert closure is None
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [parameter.detach().clone() for parameter in parameters]
        self.inner.step()
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.lerp_(old, 0.5)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step{optimizer=_Lookahead}
""")
def lookahead(ci: Any) -> list[float]:
    """An optimizer that wraps another optimizer: one optimizer_step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = _Lookahead(adam(model))
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
      forward
      loss
      backward
      forward
      loss
      backward
      optimizer_step
""")
def sharpness_aware(ci: Any) -> list[float]:
    """Handwritten sharpness-aware minimization: two forwards and two backwards per step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            criterion(model(x), y).backward()
            steps = [0.05 * parameter.grad for parameter in model.parameters()]
            with torch.no_grad():
                torch._foreach_add_(list(model.parameters()), steps)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), steps)
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)
