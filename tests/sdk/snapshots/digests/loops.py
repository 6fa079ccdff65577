"""Small training loops, each of six steps, with a fault planted in one of them on request."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci

STEPS = 6
AT = 3
"""The step in which a fault is planted."""


class Loop:
    """A loop: `fault` is called at named places of step `AT` with the objects of the loop."""

    is_traced = True
    """Whether scopes of the program are opened."""

    def __init__(self, fault: Callable[..., None] | None = None, where: str = "") -> None:
        self._fault, self._where = fault, where
        self.losses: list[float] = []
        torch.manual_seed(11)
        random.seed(11)
        numpy.random.seed(11)  # its state is part of the digests, once it is imported

    def at(self, where: str, step: int, *things: Any) -> None:
        if self._fault is not None and (where, step) == (self._where, AT):
            with torch.no_grad():
                self._fault(*things)

    def model(self) -> nn.Sequential:
        """The model; Python's generator is used from here on, and so counts."""
        random.random()
        return nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.ReLU(), nn.Linear(5, 1)
        )

    def data(self, batches: int = STEPS) -> Any:
        x = torch.randn(4 * batches, 6)
        self.set = TensorDataset(x, x.sum(1, keepdim=True))
        return DataLoader(self.set, 4, shuffle=True)


def plain(loop: Loop) -> nn.Module:
    """A step with all six quantities, over a loader."""
    model, loader = loop.model(), loop.data()
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    loop.at("begin", AT, model, optimizer, loop)
    for step, (x, y) in enumerate(loader):
        loop.at("fetched", step, model, optimizer, loop)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        loop.losses.append(loss.item())
        loop.at("backward", step, model, optimizer, loop)
        optimizer.step()
        loop.at("stepped", step, model, optimizer, loop)
    return model


def accumulation(loop: Loop) -> nn.Module:
    """Two batches for each step."""
    model, loader = loop.model(), loop.data(2 * STEPS)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for number, (x, y) in enumerate(loader):
        loss = (model(x) - y).square().mean()
        loss.backward()
        loop.losses.append(loss.item())
        if number % 2:
            loop.at("backward", number // 2, model, optimizer, loop)
            optimizer.step()
            optimizer.zero_grad()
    return model


def scaler(loop: Loop) -> nn.Module:
    """A GradScaler that skips step 2."""
    model, loader = loop.model(), loop.data()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step, (x, y) in enumerate(loader):
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        loop.losses.append(loss.item())
        if step == 2:
            model[0].weight.grad[0, 0] = torch.inf
        loop.at("backward", step, model, optimizer, loop)
        scaler.step(optimizer)
        scaler.update()
    return model


def gan(loop: Loop) -> nn.Module:
    """Two optimizers in a step, without a loader."""
    generator, critic = nn.Linear(3, 2), nn.Linear(2, 1)
    first = torch.optim.SGD(critic.parameters(), 0.05)
    second = torch.optim.SGD(generator.parameters(), 0.05)
    for step in range(STEPS):
        fake = generator(torch.randn(4, 3))
        first.zero_grad()
        loss = critic(fake.detach()).mean() - critic(torch.randn(4, 2)).mean()
        loss.backward()
        first.step()
        second.zero_grad()
        loss = -critic(fake).mean()
        loss.backward()
        loop.losses.append(loss.item())
        loop.at("backward", step, generator, second, loop)
        second.step()
    return nn.ModuleList([generator, critic])


def lbfgs(loop: Loop) -> nn.Module:
    """An optimizer with a closure that runs several times in a step."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = torch.randn(8, 6)
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = (model(x).square() + x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            loop.losses.append(loss.item())
            loop.at("backward", step, model, optimizer, loop)
            return loss

        optimizer.step(closure)
    return model


def manual(loop: Loop) -> nn.Module:
    """Steps that the program opens itself, inside a loop over a loader."""
    model, loader = loop.model(), loop.data()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for number, (x, y) in enumerate(loader):
        with ci.scope("step", index=number) if loop.is_traced else nullcontext():
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            loop.losses.append(loss.item())
            loop.at("backward", number, model, optimizer, loop)
            optimizer.step()
    return model


def batches(loop: Loop) -> nn.Module:
    """Steps of `ci.batches`."""
    model, loader = loop.model(), loop.data()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for number, (x, y) in enumerate(ci.batches(loader) if loop.is_traced else loader):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        loop.losses.append(loss.item())
        loop.at("backward", number, model, optimizer, loop)
        optimizer.step()
    return model


def evaluated(loop: Loop) -> nn.Module:
    """An evaluation after each two steps, whose batches are no part of a step."""
    model, loader = loop.model(), loop.data(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in range(STEPS // 2):
        model.train()
        for number, (x, y) in enumerate(loader):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            loop.losses.append(loss.item())
            loop.at("backward", 2 * epoch + number, model, optimizer, loop)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, _ in DataLoader(loop.set, 8):
                model(x)
    return model


def compiled(loop: Loop) -> nn.Module:
    """The model is compiled, with the backend that runs its graph as it is."""
    model, loader = loop.model(), loop.data()
    call = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step, (x, y) in enumerate(loader):
        loss = (call(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        loop.losses.append(loss.item())
        loop.at("backward", step, model, optimizer, loop)
        optimizer.step()
    return model


LOOPS: dict[str, Callable[[Loop], nn.Module]] = {
    each.__name__: each
    for each in (plain, accumulation, scaler, gan, lbfgs, manual, batches, evaluated, compiled)
}


def traced(directory: Any, **options: Any) -> AbstractContextManager[Any]:
    """A session that traces torch into `directory`."""
    return _Session(directory, options)


class _Session:
    def __init__(self, directory: Any, options: dict[str, Any]) -> None:
        self._options = {
            "output_dir": str(directory), "frameworks": ["torch"], "exporters": "none",
            "flush_interval": 3600.0, "sample_interval": None, "handle_signals": False,
            "snapshots": None, "quiet": True,
        } | options  # fmt: skip

    def __enter__(self) -> Any:
        return ci.profile(**self._options)

    def __exit__(self, *_: object) -> None:
        ci.shutdown()


def tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers, by name."""
    yield from model.state_dict().items()
