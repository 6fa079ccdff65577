"""Train a small network on the CPU for some seconds; print what the sampler is doing.

python train.py DIRECTORY SECONDS [fork]

If it is sampled, it goes on until it has been sampled twice.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import cirron_otel as ci


class Rows(Dataset[torch.Tensor]):
    """Slow, so that the training takes time without using the processor."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.ones(64)


def train(seconds: float) -> None:
    torch.set_num_threads(1)
    net = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    until, before = time.monotonic() + seconds, ci.health()["sampling"]["samples"]

    def is_to_be_sampled() -> bool:
        sampling = ci.health()["sampling"]
        return bool(sampling["interval"]) and sampling["samples"] < before + 2

    while time.monotonic() < until or is_to_be_sampled():
        for x in DataLoader(Rows(), 1):
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()


def main() -> None:
    directory, seconds = sys.argv[1], float(sys.argv[2])
    begun = time.monotonic()
    if directory != "-":
        ci.profile(output_dir=directory, exporters="none", snapshots=None, flush_interval=0.1)
    train(seconds)
    child = 0
    if "fork" in sys.argv:
        child = os.fork()
        train(0.5)
    health = ci.health()
    lasted = time.monotonic() - begun
    ci.shutdown()
    names = [thread.name for thread in threading.enumerate()]
    if "fork" in sys.argv and not child:
        os._exit(int("cirron-otel-sampler" in names or not health["sampling"]["samples"]))
    if child:
        assert os.waitpid(child, 0)[1] == 0
    print(
        json.dumps(
            {
                "sampling": health["sampling"],
                "seconds": lasted,
                "errors": health["swallowed_errors"],
                "threads": names,
                "is_cuda_initialised": torch.cuda.is_initialized(),
                "child": child,
                "modules": [m for m in ("pynvml",) if m in sys.modules],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
