"""What the loops share: small data, small models, and one usual step of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

Batch = Any
"""Inputs and targets."""

INPUTS = 4


def points(count: int = 6) -> TensorDataset:
    """So many points with their targets, the same in every run."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, INPUTS, generator=generator)
    return TensorDataset(x, x.sum(dim=1, keepdim=True))


def loader(count: int = 6, batch_size: int = 2, **options: Any) -> DataLoader[Any]:
    """A loader of so many points: by default three batches of two."""
    return DataLoader(points(count), batch_size=batch_size, **options)


def network() -> nn.Sequential:
    """A small network, the same in every run."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, 1))


class Training:
    """A model with its criterion and optimizer, and the step of training that most loops do.

    `losses` holds what every step came to: tracing must not change it.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = network() if model is None else model
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.losses: list[float] = []

    def loss(self, batch: Batch) -> Tensor:
        """The loss of one batch."""
        x, y = batch
        return self.criterion(self.model(x), y)

    def backward(self, batch: Batch, parts: int = 1) -> None:
        """Add the gradients of one batch of so many."""
        loss = self.loss(batch) / parts
        loss.backward()
        self.losses.append(loss.item())

    def update(self) -> None:
        """Step, and forget the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, batch: Batch) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad()
        self.backward(batch)
        self.optimizer.step()

    def evaluate(self, batches: Any) -> float:
        """The mean loss over these batches, with gradients as they are."""
        total = [self.loss(batch).item() for batch in batches]
        self.losses += total
        return sum(total) / len(total)


class Stream(IterableDataset[Any]):
    """Points of which nobody knows how many there are."""

    def __iter__(self) -> Iterator[Any]:
        yield from points(6)


class Changed(Dataset[Any]):
    """Points, each passed through a function when it is fetched."""

    def __init__(self, change: Callable[[Any], Any], count: int = 6) -> None:
        self.points = points(count)
        self.change = change

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        return self.change(self.points[index])


class Broken(Dataset[Any]):
    """Points of which one cannot be read, the first time that it is asked for."""

    def __init__(self, bad: int) -> None:
        self.points = points(6)
        self.bad = bad
        self.is_broken = True

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        if index == self.bad and self.is_broken:
            self.is_broken = False
            raise ValueError(f"point {index} cannot be read")
        return self.points[index]


class Raising(nn.Module):
    """A network whose forward raises at one of its calls, counted from 0."""

    def __init__(self, error: type[BaseException], at: int) -> None:
        super().__init__()
        self.network = network()
        self.error = error
        self.at = at
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        call, self.calls = self.calls, self.calls + 1
        if call == self.at:
            raise self.error("in the forward")
        return self.network(x)


class Generator(nn.Module):
    """Points out of noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, noise: Tensor) -> Tensor:
        return self.layer(noise)


class Critic(nn.Module):
    """How real points look."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)
