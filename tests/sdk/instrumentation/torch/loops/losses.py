"""Loops that require distinguishing a criterion from a model and from a transform."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import loop
from .networks import (
    Net,
    Teacher,
    begin,
    sgd,
    weights,
)
from .parts import loader


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Net}
      forward{module=Teacher}
      loss{module=MSELoss}
      backward
      optimizer_step
""")
def frozen_teacher_last(ci: Any) -> list[float]:
    """A teacher with frozen parameters, called after the student: a model, not a criterion."""
    begin()
    teacher, student, criterion = Teacher().requires_grad_(False).eval(), Net(), nn.MSELoss()
    optimizer = sgd(student)
    for _ in range(2):
        for x, _y in loader():
            optimizer.zero_grad()
            out = student(x)
            criterion(out, teacher(x)).backward()
            optimizer.step()
    return weights(student)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      backward
      optimizer_step
""")
def functional_loss(ci: Any) -> list[float]:
    """The loss is a function, not a module."""
    begin()
    model = Net()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Net}
      loss{module=CrossEntropyLoss}
      backward
      optimizer_step
""")
def weighted_criterion(ci: Any) -> list[float]:
    """A criterion with a buffer: the weights of the classes."""
    begin()
    model, criterion = Net(outputs=3), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            classes = (y.squeeze(1) > 0).long()
            criterion(model(x), classes).backward()
            optimizer.step()
    return weights(model)


class _Uncertainty(nn.Module):
    """A criterion that learns its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(out, y) * torch.exp(-self.log_variance) + self.log_variance


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Net}
      forward{module=_Uncertainty}
      backward
      optimizer_step
""")
def trained_criterion(ci: Any) -> list[float]:
    """A criterion with a trained parameter: it counts as a model."""
    begin()
    model, criterion = Net(), _Uncertainty()
    optimizer = sgd(model, criterion)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return weights(model, criterion)


class _WithLoss(Net):
    """Gives its loss when it gets the targets, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.criterion = nn.MSELoss()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        out = super().forward(x)
        return out if y is None else self.criterion(out, y)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=_WithLoss}
      backward
      optimizer_step
""")
def model_with_its_loss(ci: Any) -> list[float]:
    """The model computes its own loss: the criterion is part of the forward."""
    begin()
    model = _WithLoss()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()
    return weights(model)


class _Jitter(nn.Module):
    """Noise on the inputs; no parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.01 * torch.randn_like(x)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Net}
      loss{module=MSELoss}
      backward
      optimizer_step
""")
def augmentation(ci: Any) -> list[float]:
    """A module without parameters runs before each forward: neither a criterion nor a forward."""
    begin()
    model, criterion, augment = Net(), nn.MSELoss(), _Jitter()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(augment(x)), y).backward()
            optimizer.step()
    return weights(model)
