"""Trainings of 30 steps with planted faults, each recorded to a directory with the fault's name."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import cirron_otel as ci

EPOCHS, LENGTH, BATCH = 3, 10, 4
Hook = Callable[["Training"], None]


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Forty samples; the sample served as number `odd` is one ULP off in one element."""

    def __init__(self, odd: int | None = None) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(LENGTH * BATCH, 8, generator=generator)
        self.targets = torch.randn(LENGTH * BATCH, 2, generator=generator)
        self.served, self.odd = 0, odd

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = self.inputs[index]
        if self.served == self.odd:
            inputs = inputs.clone()
            inputs[0] = torch.nextafter(inputs[0], torch.tensor(9.0))
        self.served += 1
        return inputs, self.targets[index]


class Order:
    """The batches of an epoch, shuffled; from the swap on, one pair of batches is swapped."""

    def __init__(self, swap: int | None = None) -> None:
        self.number, self.swap = 0, swap

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(LENGTH * BATCH).tolist()
        batches = [order[at : at + BATCH] for at in range(0, len(order), BATCH)]
        for place in range(LENGTH):
            if self.number == self.swap:
                batches[place], batches[place + 1] = batches[place + 1], batches[place]
            self.number += 1
            yield batches[place]


class Training:
    """A model with everything that can differ, and places at which a fault can change it."""

    def __init__(self, seed: int = 1, odd: int | None = None, swap: int | None = None) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.loader = DataLoader(Samples(odd), batch_sampler=Order(swap))
        self.step = 0

    def run(self, first: int = 0, **hooks: Hook) -> None:
        """Train from the epoch `first` on; hooks are called by their place, in every step."""
        self.step = first * LENGTH

        def call(place: str) -> None:
            if place in hooks:
                hooks[place](self)

        for epoch in range(first, EPOCHS):
            with ci.scope("epoch", index=epoch):
                for inputs, targets in self.loader:
                    call("fetched")
                    loss = nn.functional.mse_loss(self.model(inputs), targets)
                    self.optimizer.zero_grad()
                    loss.backward()
                    call("graded")
                    self.optimizer.step()
                    call("stepped")
                    self.step += 1

    def state(self) -> dict[str, object]:
        return {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }  # fmt: skip


def at(step: int, change: Hook) -> Hook:
    """Apply a change in one step."""

    def apply(training: Training) -> None:
        if training.step == step:
            with torch.no_grad():
                change(training)

    return apply


def flip(tensor: torch.Tensor) -> None:
    """Flip the lowest bit of the first element."""
    tensor.view(torch.int32).view(-1)[0] ^= 1


def _scale(training: Training) -> None:
    training.model[3].bias.grad.mul_(2)


def _no_dropout(training: Training) -> None:
    training.model[2].eval()


def _lower_rate(training: Training) -> None:
    training.optimizer.param_groups[0]["lr"] = 0.01


def _momentum() -> None:
    """Change the optimizer's state at the end of its step, as a faulty optimizer would."""
    training = Training()

    def change(*_: object) -> None:
        if training.step == 23:
            flip(training.optimizer.state[training.model[0].weight]["momentum_buffer"])

    training.optimizer.register_step_post_hook(change)
    training.run()


FAULTS: dict[str, Callable[[], None]] = {
    "none": lambda: Training().run(),
    "again": lambda: Training().run(),
    "seed": lambda: Training(seed=2).run(),
    "weight": lambda: Training().run(
        graded=at(5, lambda training: flip(training.model[0].weight.data))
    ),
    "sample": lambda: Training(odd=13 * BATCH + 2).run(),
    "order": lambda: Training(swap=22).run(),
    "draw": lambda: Training().run(stepped=at(16, lambda _: torch.rand(1))),
    "python": lambda: Training().run(stepped=at(16, lambda _: random.random())),
    "dropout": lambda: Training().run(fetched=at(8, _no_dropout)),
    "rate": lambda: Training().run(fetched=at(19, _lower_rate)),
    "gradient": lambda: Training().run(graded=at(27, _scale)),
    "buffer": lambda: Training().run(
        graded=at(11, lambda training: flip(training.model[1].running_mean))
    ),
    "state": _momentum,
}


def resume(folder: Path, *, with_generator: bool) -> None:
    """Continue from the checkpoint after the first epoch."""
    saved = torch.load(folder / "checkpoint.pt")
    training = Training()
    training.model.load_state_dict(saved["model"])
    training.optimizer.load_state_dict(saved["optimizer"])
    if with_generator:
        torch.set_rng_state(saved["rng"])
    training.run(first=1)


def save(folder: Path) -> None:
    """Write the checkpoint after the first epoch."""
    training = Training()
    training.run(
        stepped=at(LENGTH - 1, lambda each: torch.save(each.state(), folder / "checkpoint.pt"))
    )


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    runs = FAULTS | {
        "saved": lambda: save(folder),
        "resumed": lambda: resume(folder, with_generator=True),
        "generator": lambda: resume(folder, with_generator=False),
    }
    for name in names or runs:
        ci.profile(
            output_dir=folder / name, digest="tensors", digest_keep="13..13", snapshots=None,
            sample_interval=None, exporters=[],
        )  # fmt: skip
        runs[name]()
        ci.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
