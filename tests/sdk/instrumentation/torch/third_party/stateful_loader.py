"""torchdata's StatefulDataLoader: left in the middle of an epoch, and gone on with in a new one."""

from __future__ import annotations

import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

from .program import (
    BATCH_SIZE,
    BATCHES,
    EPOCHS,
    EVALUATION_BATCHES,
    Arguments,
    labelled,
    run,
    small_model,
)

LEFT_AFTER = 3
"""Batches of the second epoch before its loader is left."""


class Training:
    """A plain loop, whose epoch can be left and gone on with."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.model = small_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses: list[float] = []
        self._batches = 0

    def loader(self, batches: int, seed: int) -> StatefulDataLoader:
        workers = self.arguments.workers
        return StatefulDataLoader(
            labelled(batches, seed), batch_size=BATCH_SIZE, shuffle=seed == 2, num_workers=workers
        )

    def epoch(self, loader: StatefulDataLoader, leave_after: int | None = None) -> None:
        self.model.train()
        for done, (examples, labels) in enumerate(loader, start=1):
            loss = nn.functional.cross_entropy(self.model(examples), labels)
            (loss / self.arguments.accumulate).backward()
            self.losses.append(loss.item())
            self._batches += 1
            if self._batches % self.arguments.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            if done == leave_after:
                break

    def evaluate(self, loader: StatefulDataLoader) -> None:
        self.model.eval()
        with torch.no_grad():
            for examples, labels in loader:
                loss = nn.functional.cross_entropy(self.model(examples), labels)
                self.losses.append(loss.item())


def train(arguments: Arguments) -> tuple[list[float], nn.Module]:
    training = Training(arguments)
    loader, evaluation = training.loader(BATCHES, 2), training.loader(EVALUATION_BATCHES, 3)
    assert len(loader) == BATCHES
    for _ in range(EPOCHS - 1):
        training.epoch(loader)
        training.evaluate(evaluation)
    training.epoch(loader, leave_after=LEFT_AFTER)
    resumed = training.loader(BATCHES, 2)
    resumed.load_state_dict(loader.state_dict())
    training.epoch(resumed)
    training.evaluate(evaluation)
    return training.losses, training.model


if __name__ == "__main__":
    run(train)
