"""The program of `cirron-otel demo`: a small network learns to classify drawn shapes, on the CPU.

    python train.py DIR [IMAGES]

It is an ordinary training program. Only the calls that begin with `ci.` are for tracing, and of
these only `ci.profile()` is required. The last line of output is the session's id.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, random_split

import cirron_otel as ci

IMAGES = 6_400
EPOCHS = 3
BATCH = 64
SIDE, SHAPE = 20, 7
"""The side lengths of an image and of the shape in it, pixels."""


class Shapes:
    """Images of a square, a plus or a cross in noise, drawn on access."""

    def __init__(self, count: int) -> None:
        self.count = count
        diagonal = torch.eye(SHAPE)
        square, plus = torch.ones(SHAPE, SHAPE), torch.zeros(SHAPE, SHAPE)
        square[1:-1, 1:-1] = 0
        plus[SHAPE // 2] = plus[:, SHAPE // 2] = 1
        self.kinds = [square, plus, (diagonal + diagonal.flip(0)).clamp(max=1)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        dice = torch.Generator().manual_seed(number)
        kind = number % len(self.kinds)
        row, column = torch.randint(SIDE - SHAPE + 1, (2,), generator=dice).tolist()
        image = torch.randn(1, SIDE, SIDE, generator=dice) / 4
        image[0, row : row + SHAPE, column : column + SHAPE] += self.kinds[kind]
        return image, kind


def network() -> nn.Module:
    """Return a model with two convolutions and a linear layer: 23,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(4),
        nn.Flatten(), nn.Linear(512, 3),
    )  # fmt: skip


def train(images: int) -> None:
    """Train and evaluate; in the last epoch the gradients of two batches make one step."""
    with ci.scope("set_up"):
        model = ci.watch(network())  # records its weights and gradients at the end of each epoch
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        training, validation = random_split(Shapes(images), [0.8, 0.2])
        loader = DataLoader(training, BATCH, shuffle=True, drop_last=True)
    for epoch in ci.epochs(range(EPOCHS)):
        batches_a_step = 2 if epoch == EPOCHS - 1 else 1
        model.train()
        for number, (inputs, kinds) in enumerate(loader, start=1):
            if number % batches_a_step == 1 % batches_a_step:
                optimizer.zero_grad()
            loss = criterion(model(inputs), kinds)
            (loss / batches_a_step).backward()
            if number % batches_a_step == 0:
                optimizer.step()
                ci.mark("loss", loss.item())
        ci.mark("accuracy", accuracy(model, DataLoader(validation, BATCH)), kind="summary")


def accuracy(model: nn.Module, loader: Any) -> float:
    """Return the share of a loader's images that the model classifies correctly."""
    model.eval()
    right = total = 0
    with torch.no_grad():
        for inputs, kinds in loader:
            right += int((model(inputs).argmax(1) == kinds).sum())
            total += len(kinds)
    return right / total


def main(directory: str, images: int = IMAGES) -> None:
    """Trace a training into the spool of `directory`."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    session = ci.profile(output_dir=directory).session
    train(images)
    ci.shutdown()
    if session is not None:
        print(session.id)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
