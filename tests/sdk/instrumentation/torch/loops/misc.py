"""Loops with other tools: profilers, inference_mode, saved models, devices, parametrizations."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from . import loop
from .networks import (
    Net,
    Normed,
    adam,
    begin,
    sgd,
    weights,
)
from .parts import INPUTS, Training, loader


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
      forward
""")
def inference_mode_in_a_step(ci: Any) -> list[float]:
    """A forward under inference_mode after each optimizer step computes the batch's accuracy."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            with torch.inference_mode():
                model(x)
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
      loss{module=L1Loss}
""")
def metric_module(ci: Any) -> list[float]:
    """A module without parameters computes a metric after the step: it is not a criterion."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    metric = nn.L1Loss()
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            out = model(x)
            criterion(out, y).backward()
            optimizer.step()
            with torch.no_grad():
                metric(out, y)
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
def under_the_profiler(ci: Any) -> list[float]:
    """torch.profiler with a schedule, stepped in the loop, and record_function inside it."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule
    ) as profiler:
        for _ in range(2):
            for x, y in loader():
                with torch.profiler.record_function("batch"):
                    optimizer.zero_grad()
                    criterion(model(x), y).backward()
                    optimizer.step()
                profiler.step()
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
def under_the_old_profiler(ci: Any) -> list[float]:
    """torch.autograd.profiler around each epoch, with shapes and stacks."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        with torch.autograd.profiler.profile(record_shapes=True, with_stack=True):
            for x, y in loader():
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  forward
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  forward
""")
def saved_and_loaded(ci: Any) -> list[float]:
    """torch.save of the model and the optimizer after each epoch; a loaded copy is tried out."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        saved = io.BytesIO()
        torch.save({"model": model, "optimizer": optimizer}, saved)
        assert b"cirron" not in saved.getvalue()
        saved.seek(0)
        with torch.no_grad():
            torch.load(saved, weights_only=False)["model"](torch.zeros(1, INPUTS))
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Normed}
      loss
      backward
      optimizer_step
""")
def restored(ci: Any) -> list[float]:
    """State dicts are loaded into a new model and optimizer before the second epoch."""
    begin()
    criterion, states = nn.MSELoss(), None
    for _ in range(2):
        model = Normed()
        optimizer = adam(model)
        if states is not None:
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        states = (model.state_dict(), optimizer.state_dict())
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
def moved_to_the_cpu(ci: Any) -> list[float]:
    """batch.to(device), where the device is the CPU: nothing is copied."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    device = torch.device("cpu")
    model.to(device)
    for _ in range(2):
        for x, y in loader():
            inputs, targets = x.to(device, non_blocking=True), y.to(device)
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
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
def default_device_and_dtype(ci: Any) -> list[float]:
    """torch.device("cpu") as a context manager, and float64 as the default dtype."""
    begin()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("cpu"):
            model, criterion = Net(), nn.MSELoss()
            optimizer = sgd(model)
            for _ in range(2):
                for x, y in loader():
                    optimizer.zero_grad()
                    criterion(model(x.double()), y.double()).backward()
                    optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
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
def parametrized(ci: Any) -> list[float]:
    """Weight normalization and pruning in the model: parametrizations are modules."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    parametrizations.weight_norm(model.hidden)
    prune.l1_unstructured(model.head, "weight", amount=0.5)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  data_load
  forward
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
def batches_by_their_number(ci: Any) -> Any:
    """Loops over range(len(loader)); the validation has one batch, as has an earlier inspection."""
    training = Training()
    batched, held_out = loader(), loader(2)
    look = next(iter(held_out))
    with torch.no_grad():
        training.model(look[0])
    for _ in range(2):
        batches = iter(batched)
        for _ in range(len(batched)):
            training.step(next(batches))
        batches = iter(held_out)
        for _ in range(len(held_out)):
            examples, _labels = next(batches)
            with torch.no_grad():
                training.model(examples)
        del batches
    return training.losses
