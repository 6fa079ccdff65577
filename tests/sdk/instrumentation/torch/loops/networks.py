"""The small models of the loops over models, compilers, checkpointing, optimizers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .parts import INPUTS


class Net(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, inputs: int = INPUTS, outputs: int = 1) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, 8)
        self.activation = nn.ReLU()
        self.head = nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.hidden(x)))


class Teacher(Net):
    """A second model, told from the first by its class."""


class Encoder(Net):
    """Gives four features."""

    def __init__(self) -> None:
        super().__init__(INPUTS, INPUTS)


class Decoder(Net):
    """Takes four features."""


class Generator(Net):
    """Four features from noise."""

    def __init__(self) -> None:
        super().__init__(INPUTS, INPUTS)


class Discriminator(Net):
    """One logit."""


class Normed(nn.Module):
    """A model with batch statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Block(nn.Module):
    """A layer as wide as its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, INPUTS)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Checkpointed(nn.Module):
    """Two checkpointed blocks between two layers that are not."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first = nn.Linear(INPUTS, INPUTS)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(INPUTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


class CheckpointedOnce(nn.Module):
    """One checkpointed block, or what another class makes of it."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first = nn.Linear(INPUTS, INPUTS)
        self.block: nn.Module = Block()
        self.head = nn.Linear(INPUTS, 1)

    def middle(self, x: Tensor) -> Tensor:
        """What is checkpointed."""
        return self.block(x)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.middle, self.first(x), use_reentrant=self.use_reentrant)
        return self.head(x)


class CheckpointedTwice(CheckpointedOnce):
    """A checkpoint within a checkpoint."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__(use_reentrant=use_reentrant)
        self.around = nn.Linear(INPUTS, INPUTS)

    def middle(self, x: Tensor) -> Tensor:
        x = checkpoint(self.block, torch.tanh(self.around(x)), use_reentrant=self.use_reentrant)
        return torch.tanh(self.around(x))


class CheckpointedSequence(nn.Module):
    """Three segments, of which torch checkpoints all but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, INPUTS)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(INPUTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint_sequential(self.blocks, 3, self.first(x), use_reentrant=False))


def begin(seed: int = 0) -> None:
    """One thread and a seed, as every loop begins."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)


def sgd(*models: nn.Module) -> torch.optim.SGD:
    """The usual optimizer of their parameters."""
    return torch.optim.SGD(_parameters(models), lr=0.05, momentum=0.9)


def adam(*models: nn.Module, **options: Any) -> torch.optim.Adam:
    """The other usual optimizer of their parameters."""
    return torch.optim.Adam(list(_parameters(models)), lr=0.01, **options)


def weights(*models: nn.Module) -> list[float]:
    """Every parameter of theirs, for a loop to return: tracing must not change them."""
    return [value for parameter in _parameters(models) for value in parameter.flatten().tolist()]


def _parameters(models: tuple[nn.Module, ...]) -> Iterator[nn.Parameter]:
    for model in models:
        yield from model.parameters()
