"""Loops by the way in which they compute gradients: every entry point of autograd."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from . import loop
from .networks import (
    Net,
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
      loss x2
      backward
      optimizer_step
""")
def autograd_backward(ci: Any) -> list[float]:
    """torch.autograd.backward of two losses at once."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            out = model(x)
            torch.autograd.backward([criterion(out, y), criterion(out, y + 1)])
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
def autograd_grad(ci: Any) -> list[float]:
    """torch.autograd.grad; the loop assigns the gradients itself."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    parameters = list(model.parameters())
    for _ in range(2):
        for x, y in loader():
            gradients = torch.autograd.grad(criterion(model(x), y), parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
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
      backward
      optimizer_step
""")
def gradient_penalty(ci: Any) -> list[float]:
    """A gradient penalty: autograd.grad with create_graph, then the backward."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            loss = criterion(model(x.requires_grad_()), y)
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + gradient.square().sum()).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss x2
      backward x2
      optimizer_step
""")
def retained_graph(ci: Any) -> list[float]:
    """Two backwards through one graph (retain_graph): not an accumulation over batches."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            out = model(x)
            first, second = criterion(out, y), criterion(out, y + 1)
            first.backward(retain_graph=True)
            second.backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      backward
      optimizer_step
""")
def backward_with_gradient(ci: Any) -> list[float]:
    """out.backward(gradient=...) and inputs=..., without a loss."""
    begin()
    model = Net()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            out = model(x)
            out.backward(gradient=out.detach() - y, inputs=list(model.parameters()))
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
      forward
      loss
      backward
      optimizer_step
""")
def truncated_in_time(ci: Any) -> list[float]:
    """Truncated backpropagation through time: a batch has two windows, each with its own step."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    for _ in range(2):
        for x, y in loader():
            for window in (x, x.flip(0)):
                optimizer.zero_grad()
                criterion(model(window), y).backward()
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
def meta_learning(ci: Any) -> list[float]:
    """MAML: an inner step through autograd.grad and functional_call, then the outer backward."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    names = [name for name, _parameter in model.named_parameters()]
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            parameters = list(model.parameters())
            inner = criterion(model(x), y)
            gradients = torch.autograd.grad(inner, parameters, create_graph=True)
            fast = [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]
            outer = functional_call(model, dict(zip(names, fast, strict=True)), (x.flip(0),))
            criterion(outer, y).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Net}
      loss
      backward
        forward{module=Linear}
      optimizer_step
""")
def hooks_on_tensors(ci: Any) -> list[float]:
    """A hook on a tensor calls another model in the backward: this is not a recomputation."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    probe = nn.Linear(1, 1).requires_grad_(False)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            with torch.autograd.graph.save_on_cpu():
                out = model(x)
            out.register_hook(lambda gradient: probe(gradient) * 0 + gradient)
            criterion(out, y).backward()
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
def anomaly_mode(ci: Any) -> list[float]:
    """torch.autograd.detect_anomaly() around the complete loop."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)
    with warnings.catch_warnings(), torch.autograd.detect_anomaly():
        warnings.simplefilter("ignore")
        for _ in range(2):
            for x, y in loader():
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    return weights(model)
