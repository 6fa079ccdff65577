"""Train on batches that arrive slowly; the loader takes long to notice that no batch is left.

python slow_end.py DIRECTORY [every]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

import cirron_otel as ci

PAUSE, END = 10, 30
"""So many samples are taken before each batch, and before the loader notices its end."""


class Slow(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(3):
            wait_for(PAUSE)
            yield torch.ones(4)
        wait_for(END)


def wait_for(samples: int) -> None:
    before = ci.health()["sampling"]["samples"]
    while ci.health()["sampling"]["samples"] < before + samples:
        time.sleep(0.01)


def main() -> None:
    every = {"detail_every": 2} if "every" in sys.argv else {}
    ci.profile(
        output_dir=sys.argv[1], exporters="none", snapshots=None, flush_interval=0.02,
        sample_interval=0.02, **every,
    )  # fmt: skip
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(2):
        for x in DataLoader(Slow(), 1):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
    ci.shutdown()
    print(json.dumps(ci.health()["drops"]))


if __name__ == "__main__":
    main()
