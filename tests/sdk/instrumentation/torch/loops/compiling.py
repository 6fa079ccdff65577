"""Loops with torch.compile in its three forms, applied to models and to other functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import loop
from .networks import (
    Checkpointed,
    Net,
    adam,
    begin,
    sgd,
    weights,
)
from .parts import loader


def _begin() -> None:
    """A loop's beginning with nothing compiled so far: torch limits how often it compiles anew."""
    begin()
    torch.compiler.reset()


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module}
      loss
      backward
      optimizer_step
""")
def compiled_model(ci: Any) -> list[float]:
    """torch.compile(model), fullgraph."""
    _begin()
    net, criterion = Net(), nn.MSELoss()
    model = torch.compile(net, backend="aot_eager", fullgraph=True)
    optimizer = sgd(net)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return weights(net)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Net}
      loss
      backward
      optimizer_step
""")
def compiled_in_place(ci: Any) -> list[float]:
    """model.compile(), fullgraph."""
    _begin()
    model, criterion = Net(), nn.MSELoss()
    model.compile(backend="aot_eager", fullgraph=True)
    optimizer = sgd(model)
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
      forward{function=predict}
      loss
      backward
      optimizer_step
""")
def compiled_function(ci: Any) -> list[float]:
    """A compiled function that calls the model, fullgraph."""
    _begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def predict(x: Tensor) -> Tensor:
        return model(x)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(predict(x), y).backward()
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{function=loss_of}
      backward
      optimizer_step
""")
def compiled_forward_and_loss(ci: Any) -> list[float]:
    """A compiled function that calls the model and the criterion: one forward."""
    _begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return criterion(model(x), y)

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            loss_of(x, y).backward()
            optimizer.step()
    return weights(model)


_early_net = Net()
_early = torch.compile(_early_net, backend="aot_eager", fullgraph=True)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module}
      loss
      backward
      optimizer_step
""")
def compiled_before_profile(ci: Any) -> list[float]:
    """torch.compile(model) was called when the program was imported, before profile()."""
    _begin()
    _early_net.load_state_dict(Net().state_dict())
    criterion, optimizer = nn.MSELoss(), sgd(_early_net)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(_early(x), y).backward()
            optimizer.step()
    return weights(_early_net)


_early_function_net = Net()


@torch.compile(backend="aot_eager", fullgraph=True)
def _predict(x: Tensor) -> Tensor:
    return _early_function_net(x)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{function=_predict}
      loss
      backward
      optimizer_step
""")
def compiled_function_before_profile(ci: Any) -> list[float]:
    """A function was decorated with torch.compile before profile()."""
    _begin()
    _early_function_net.load_state_dict(Net().state_dict())
    criterion, optimizer = nn.MSELoss(), sgd(_early_function_net)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(_predict(x), y).backward()
            optimizer.step()
    return weights(_early_function_net)


class _Broken(nn.Module):
    """A model that torch cannot compile into one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Net(outputs=4)
        self.second = Net()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module}
      loss
      backward
      optimizer_step
""")
def compiled_with_graph_break(ci: Any) -> list[float]:
    """torch.compile(model) of a model with a graph break: two graphs, one forward."""
    _begin()
    net, criterion = _Broken(), nn.MSELoss()
    model = torch.compile(net, backend="aot_eager")
    optimizer = sgd(net)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return weights(net)


class _Around(nn.Module):
    """A model of which a part is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.compile(Net(outputs=4), backend="aot_eager", fullgraph=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=_Around}
      loss
      backward
      optimizer_step
""")
def compiled_part(ci: Any) -> list[float]:
    """Only a part of the model is compiled: the forward covers the complete model."""
    _begin()
    model, criterion = _Around(), nn.MSELoss()
    optimizer = sgd(model)
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
      forward{module=Net}
      backward
      optimizer_step
""")
def compiled_loss(ci: Any) -> list[float]:
    """A compiled function that calls no model (a functional loss) has no scope."""
    _begin()
    model = Net()
    optimizer = sgd(model)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(out, y) + out.abs().mean()

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
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
def compiled_optimizer(ci: Any) -> list[float]:
    """optimizer.step = torch.compile(optimizer.step)."""
    _begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model)
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")  # type: ignore[method-assign]
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
def compiled_function_of_optimizer(ci: Any) -> list[float]:
    """A compiled function that calls optimizer.step(): an optimizer step, not a forward."""
    _begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model)

    @torch.compile(backend="aot_eager")
    def update() -> None:
        optimizer.step()

    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            update()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{function=train_step}
        backward
""")
def compiled_train_step(ci: Any) -> list[float]:
    """The complete step is one compiled function, which contains the backward."""
    _begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = adam(model)

    @torch.compile(backend="aot_eager")
    def train_step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(2):
        for x, y in loader():
            train_step(x, y)
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module}
      loss
      backward
      optimizer_step
""")
def compiled_checkpointing(ci: Any) -> list[float]:
    """A compiled model with checkpointed blocks: torch puts the recomputation into its graph."""
    _begin()
    net, criterion = Checkpointed(use_reentrant=False), nn.MSELoss()
    model = torch.compile(net, backend="aot_eager", fullgraph=True)
    optimizer = sgd(net)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return weights(net)


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
def compiled_validation(ci: Any) -> list[float]:
    """A compiled model is validated under no_grad after each epoch, which recompiles it."""
    _begin()
    net, criterion = Net(), nn.MSELoss()
    model = torch.compile(net, backend="aot_eager", fullgraph=True)
    optimizer = sgd(net)
    for _ in range(2):
        model.train()
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in loader(4):
                criterion(model(x), y)
    return weights(net)


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module}
      loss
      backward
      optimizer_step
""",
    slow=True,
)
def compiled_by_inductor(ci: Any) -> list[float]:
    """torch.compile(model) with the default backend."""
    _begin()
    net, criterion = Net(), nn.MSELoss()
    model = torch.compile(net, fullgraph=True)
    optimizer = sgd(net)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return weights(net)
