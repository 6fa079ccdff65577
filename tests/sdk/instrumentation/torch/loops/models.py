"""Loops over models of every kind: several, wrapped, traced, functional, called directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from . import loop
from .networks import (
    Decoder,
    Encoder,
    Net,
    Teacher,
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
      forward{module=Teacher}
      forward{module=Net}
      loss{module=MSELoss} x2
      backward
      optimizer_step
""")
def teacher_and_student(ci: Any) -> list[float]:
    """Distillation: a teacher under no_grad, then the student."""
    begin()
    teacher, student, criterion = Teacher().eval(), Net(), nn.MSELoss()
    optimizer = sgd(student)
    for _ in range(2):
        for x, y in loader():
            with torch.no_grad():
                target = teacher(x)
            optimizer.zero_grad()
            out = student(x)
            loss = criterion(out, y) + criterion(out, target)
            loss.backward()
            optimizer.step()
    return weights(student)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Encoder}
      forward{module=Decoder}
      loss
      backward
      optimizer_step
""")
def encoder_and_decoder(ci: Any) -> list[float]:
    """Two models, called one after the other, with one optimizer."""
    begin()
    encoder, decoder, criterion = Encoder(), Decoder(), nn.MSELoss()
    optimizer = sgd(encoder, decoder)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(decoder(encoder(x)), y).backward()
            optimizer.step()
    return weights(encoder, decoder)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward x2
      loss
      backward
      optimizer_step
""")
def siamese(ci: Any) -> list[float]:
    """The same model is called twice in a step."""
    begin()
    model, criterion = Net(outputs=INPUTS), nn.CosineEmbeddingLoss()
    optimizer = sgd(model)
    for _ in range(2):
        for x, _y in loader():
            optimizer.zero_grad()
            left, right = model(x), model(x + 0.1)
            criterion(left, right, torch.ones(len(x))).backward()
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
      optimizer_step
""")
def direct_forward(ci: Any) -> list[float]:
    """model.forward(x): only the layers' __call__ is used, never the model's own."""
    begin()
    model, criterion = Net(), nn.MSELoss()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model.forward(x), y).backward()
            optimizer.step()
    return weights(model)


class _System(nn.Module):
    """A model whose steps are methods, as Lightning has it; it has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.criterion = nn.MSELoss()

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return self.criterion(self.net(batch[0]), batch[1])


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
def training_step_method(ci: Any) -> list[float]:
    """A module whose training_step method calls its network and its criterion."""
    begin()
    system = _System()
    optimizer = sgd(system)
    for _ in range(2):
        for batch in loader():
            optimizer.zero_grad()
            system.training_step(batch).backward()
            optimizer.step()
    return weights(system)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=Net}
      forward{module=Linear}
      backward
      optimizer_step
""")
def parts_in_a_dict(ci: Any) -> list[float]:
    """A ModuleDict whose parts the loop calls one by one."""
    begin()
    model = nn.ModuleDict({"body": Net(outputs=INPUTS), "head": nn.Linear(INPUTS, 1)})
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            out = model["head"](torch.relu(model["body"](x)))
            functional.mse_loss(out, y).backward()
            optimizer.step()
    return weights(model)


class _Potential(nn.Module):
    """An energy and, as its gradient, the forces."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.requires_grad_()
        energy = torch.tanh(self.net(x))
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, force


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=_Potential}
        backward
      loss x2
      backward
      optimizer_step
""")
def grad_inside_forward(ci: Any) -> list[float]:
    """autograd.grad inside the model's forward (forces of a potential)."""
    begin()
    model, criterion = _Potential(), nn.MSELoss()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            energy, force = model(x)
            loss = criterion(energy, y) + criterion(force, torch.zeros_like(force))
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
      optimizer_step
      forward
      loss
      backward
      optimizer_step
""")
def ensemble(ci: Any) -> list[float]:
    """Two models with an optimizer each, trained on the same batch: one step."""
    begin()
    models, criterion = [Net(), Net()], nn.MSELoss()
    optimizers = [sgd(model) for model in models]
    for _ in range(2):
        for x, y in loader():
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    return weights(*models)


@loop("""
cirron.session
  epoch[0-3]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def trials(ci: Any) -> list[float]:
    """A search: each of two trials has its own model, optimizer and loader."""
    begin()
    for width in (2, 3):
        batches, criterion = loader(), nn.MSELoss()
        model = nn.Sequential(nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, 1))
        optimizer = sgd(model)
        for _ in range(2):
            for x, y in batches:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
    return weights(model)


@loop("""
cirron.session
  forward
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def jit_traced(ci: Any) -> list[float]:
    """torch.jit.trace: the tracing calls the model once, before the loop."""
    begin()
    model = torch.jit.trace(Net(), torch.zeros(2, INPUTS), check_trace=False)
    criterion = nn.MSELoss()
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
      forward
      loss
      backward
      optimizer_step
""")
def jit_scripted(ci: Any) -> list[float]:
    """torch.jit.script: the model's layers run outside Python."""
    begin()
    layers = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, 1))
    model, criterion = torch.jit.script(layers), nn.MSELoss()
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
def per_sample_gradients(ci: Any) -> list[float]:
    """torch.func: vmap of grad of functional_call gives per-sample gradients; then a step."""
    begin()
    model = Net()
    optimizer = sgd(model)

    def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(functional_call(model, parameters, (x,)), y)

    for _ in range(2):
        for x, y in loader():
            parameters = {name: value.detach() for name, value in model.named_parameters()}
            gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name].mean(0)
            optimizer.step()
    return weights(model)


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=DataParallel}
      loss
      backward
      optimizer_step
""")
def data_parallel(ci: Any) -> list[float]:
    """nn.DataParallel without a GPU, which calls the wrapped model."""
    begin()
    model, criterion = nn.DataParallel(Net()), nn.MSELoss()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    return weights(model)


def _nothing(*_args: Any) -> None:
    return None


def _seeing(seen: list[str]) -> Callable[..., None]:
    def see(module: nn.Module, *_args: Any) -> None:
        seen.append(type(module).__name__)

    return see


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
def hooks_of_their_own(ci: Any) -> list[float]:
    """The loop registers forward and full backward hooks on the model and on its layers."""
    begin()
    model, criterion, seen = Net(), nn.MSELoss(), []
    optimizer = sgd(model)
    for module in model.modules():
        module.register_forward_pre_hook(_nothing)
        module.register_forward_hook(_nothing)
    model.register_full_backward_hook(_seeing(seen))
    model.head.register_full_backward_hook(_seeing(seen))
    for _ in range(2):
        for x, y in loader():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    assert len(seen) == 12
    return weights(model)
