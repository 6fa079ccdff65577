"""Loops with learning rate schedules and with averaged weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from . import loop
from .networks import (
    Net,
    Normed,
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
      forward
      loss
      backward
      optimizer_step
""")
def scheduler_per_step(ci: Any) -> list[float]:
    """A learning rate schedule, stepped after each step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            schedule.step()
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
def scheduler_per_epoch(ci: Any) -> list[float]:
    """A learning rate schedule, stepped after each epoch."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        schedule.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward{module=Net}
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward{module=AveragedModel}
    loss
    data_load
    forward{module=AveragedModel}
    loss
  epoch[1]
    step[0-2]
      data_load
      forward{module=Net}
      loss
      backward
      optimizer_step
  eval[1]
    data_load
    forward{module=AveragedModel}
    loss
    data_load
    forward{module=AveragedModel}
    loss
""")
def averaged_model(ci: Any) -> list[float]:
    """An exponential average of the weights (AveragedModel), evaluated after each epoch."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            average.update_parameters(model)
        with torch.no_grad():
            for x, y in loader(4):
                criterion(average(x), y)
    return weights(model, average)


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward{module=Net}
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward{module=Net}
    loss
    data_load
    forward{module=Net}
    loss
  epoch[1]
    step[0-2]
      data_load
      forward{module=Net}
      loss
      backward
      optimizer_step
  eval[1]
    data_load
    forward{module=Net}
    loss
    data_load
    forward{module=Net}
    loss
""")
def copied_model(ci: Any) -> list[float]:
    """The average is a copy.deepcopy(model) made during training, evaluated after each epoch."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    average = None
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            if average is None:
                average = copy.deepcopy(model).requires_grad_(False)
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value.detach(), 0.1)
        assert average is not None
        with torch.inference_mode():
            for x, y in loader(4):
                criterion(average(x), y)
    assert average is not None
    return weights(model, average)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Normed}
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward{module=AveragedModel}
    data_load
    forward{module=AveragedModel}
    data_load
    forward{module=AveragedModel}
""")
def swa(ci: Any) -> list[float]:
    """Stochastic weight averaging: SWALR, and at the end update_bn, a pass without gradients."""
    begin()
    model, criterion = Normed(), nn.MSELoss()
    optimizer = sgd(model)
    average, schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.01)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        average.update_parameters(model)
        schedule.step()
    update_bn(loader(), average)
    return weights(model, average)
