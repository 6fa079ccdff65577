"""Loops in mixed precision: autocast, and GradScaler with skipped steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from . import loop
from .networks import (
    Net,
    adam,
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
def scaler(ci: Any) -> list[float]:
    """GradScaler, with unscale_ and clipping."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            scaler.scale(criterion(model(x), y)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
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
def scaler_disabled(ci: Any) -> list[float]:
    """GradScaler(enabled=False): no step is skipped."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            scaler.scale(criterion(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]{skipped=true}
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
def scaler_skips(ci: Any) -> list[float]:
    """GradScaler skips the second step, because its gradients are infinite."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    for _ in range(2):
        for i, (x, y) in enumerate(loader()):
            optimizer.zero_grad()
            loss = criterion(model(x), y) * (math.inf if i == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() == 1.0
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]{skipped=true}
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def scaler_skips_fused(ci: Any) -> list[float]:
    """GradScaler passes the second step to a fused optimizer, which skips it."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    for _ in range(2):
        for i, (x, y) in enumerate(loader()):
            optimizer.zero_grad()
            loss = criterion(model(x), y) * (math.inf if i == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() == 1.0
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]{skipped=true}
      micro_step[0-1]
        data_load
        forward
        loss
        backward
    step[1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
""")
def scaler_skips_accumulated(ci: Any) -> list[float]:
    """GradScaler, with gradients accumulated over two batches; the first step is skipped."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    for _ in range(2):
        for i, (x, y) in enumerate(loader(8)):
            loss = criterion(model(x), y) * (math.inf if i == 1 else 0.5)
            scaler.scale(loss).backward()
            if i % 2 == 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert scaler.get_scale() == 1.0
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0]{skipped=true}
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
    step[1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
""")
def scaler_skips_accumulated_fused(ci: Any) -> list[float]:
    """GradScaler and a fused optimizer, with accumulated gradients; the first step is skipped."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    for _ in range(2):
        for i, (x, y) in enumerate(loader(8)):
            loss = criterion(model(x), y) * (math.inf if i == 1 else 0.5)
            scaler.scale(loss).backward()
            if i % 2 == 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert scaler.get_scale() == 1.0
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
def autocast(ci: Any) -> list[float]:
    """autocast to bfloat16 around the forward and the loss."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = criterion(model(x).float(), y)
            loss.backward()
            optimizer.step()
    return weights(model)
