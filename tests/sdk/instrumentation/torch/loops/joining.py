"""Models that are first used later in a program: in a separate stage, as a teacher, scripted."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from . import loop, parts
from .networks import begin


class First(nn.Linear):
    """The model of the first stage."""


class Second(nn.Module):
    """The model of the second stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(parts.INPUTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Third(nn.Sequential):
    """The model of the third stage."""


def _stages() -> list[nn.Module]:
    return [First(parts.INPUTS, 1), Second(), Third(nn.Linear(parts.INPUTS, 1), nn.ReLU())]


def _train(model: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for x, y in parts.loader():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward{module=First}
      backward
      optimizer_step
  epoch[1]
    step[0-2]
      data_load
      forward{module=Second}
      backward
      optimizer_step
  epoch[2]
    step[0-2]
      data_load
      forward{module=Third}
      backward
      optimizer_step
""")
def training_stages(ci: Any) -> Any:
    """Three consecutive stages, each with a model of another class."""
    begin()
    return [_train(model) for model in _stages()]


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward{module=First}
      backward
      optimizer_step
  epoch[1-2]
    step[0-2]
      data_load
      forward{module=First}
      forward{module=Second}
      backward
      optimizer_step
""")
def teacher_joins(ci: Any) -> Any:
    """A frozen teacher of another class is used from the second epoch on."""
    begin()
    student, teacher, _ = _stages()
    teacher.eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    losses = []
    for epoch in range(3):
        for x, y in parts.loader():
            loss = (student(x) - y).square().mean()
            if epoch:
                with torch.no_grad():
                    target = teacher(x)
                loss = loss + (target - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward{module=Second}
      backward
      optimizer_step
  epoch[1]
    step[0-2]
      data_load
      forward{module=RecursiveScriptModule}
      backward
      optimizer_step
""")
def scripted_later(ci: Any) -> Any:
    """A model is trained, then scripted by torch.jit.script; the ScriptModule is trained, too."""
    begin()
    model = _stages()[1]
    losses = _train(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(model)
    return losses + _train(scripted)


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
      forward{module=First}
      backward
      optimizer_step
    step[1]
      data_load
      forward{module=First}
      forward{module=Third}
      backward
      optimizer_step
    step[2]
      data_load
      forward{module=First}
      backward
      optimizer_step
""")
def auxiliary_model_in_one_step(ci: Any) -> Any:
    """A model of another class is called once, in the middle of an epoch."""
    begin()
    model, _, auxiliary = _stages()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for number, (x, y) in enumerate(parts.loader()):
        loss = (model(x) - y).square().mean()
        if number == 1:
            loss = loss + auxiliary(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward{module=First}
      backward
      optimizer_step
  eval[0]
    data_load
    forward{module=First}
    data_load
    forward{module=Second}
    data_load
    forward{module=Third}
""")
def evaluation_of_several_models(ci: Any) -> Any:
    """Each batch of an evaluation is passed to a different model; two of the models are new."""
    begin()
    models = _stages()
    losses = _train(models[0])
    with torch.no_grad():
        for model, (x, _) in zip(models, parts.loader(), strict=True):
            losses.append(model.eval()(x).sum().item())
    return losses
