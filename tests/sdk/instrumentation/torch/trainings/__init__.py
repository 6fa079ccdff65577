"""Programs that train one or several models, with the expected numbers of trainings."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Linear, Module
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

Steps = list[tuple[int, int]]
"""Numbers of trainings, each with the number of consecutive steps."""
STEPS = 3
"""Steps of one pass over a loader."""


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(2 * STEPS, 4)), batch_size=2)


def net(out: int = 1) -> Linear:
    return Linear(4, out)


def sgd(*models: Module) -> SGD:
    return SGD([each for model in models for each in model.parameters()], lr=0.01)


def update(model: Module, optimizer: Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def fit(model: Module, optimizer: Optimizer | None = None, epochs: int = 2) -> None:
    optimizer = optimizer or sgd(model)
    for _ in range(epochs):
        for (batch,) in loader():
            update(model, optimizer, batch)
