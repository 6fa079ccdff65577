"""Two ranks learn together on the CPU, traced: the run of which the screens show the report.

    torchrun --nproc-per-node 2 train.py DIR

A shard of the data ends every 40 batches, and the next one has to be opened first, on one rank
longer than on the other.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import cirron_otel as ci

_EPOCHS, _BATCHES, _BATCH = 3, 120, 32
_SHARD = 40 * _BATCH


class Noise(Dataset[tuple[Tensor, int]]):
    """Images of noise around the mean of their kind, in shards."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return _BATCHES * _BATCH

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if number % _SHARD == 0:
            time.sleep(0.1 + 0.6 * self.rank)
        dice = torch.Generator().manual_seed(number)
        kind = number % 10
        return torch.randn(3, 24, 24, generator=dice) + kind / 10, kind


def network() -> nn.Module:
    """Three convolutions and a linear layer."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(),
                   nn.MaxPool2d(2)]  # fmt: skip
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 9, 10))


def main(directory: str) -> None:
    """Train, and give the spool to `directory`."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    distributed.init_process_group("gloo")
    profiler: Any = ci.profile(output="spool", output_dir=directory, frameworks=["torch"])
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _EPOCHS * _BATCHES)
    loader = DataLoader(Noise(int(os.environ["RANK"])), batch_size=_BATCH)
    criterion = nn.CrossEntropyLoss()
    for _ in range(_EPOCHS):
        for images, kinds in loader:
            optimizer.zero_grad()
            found = model(images)
            loss = criterion(found, kinds)
            loss.backward()
            optimizer.step()
            schedule.step()
            ci.mark("loss", loss.item())
            ci.mark("learning rate", schedule.get_last_lr()[0])
            ci.mark("accuracy", (found.argmax(1) == kinds).float().mean().item())
    profiler.shutdown()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
