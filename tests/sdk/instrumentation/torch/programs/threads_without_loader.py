"""Trains a model in each of several threads, without a loader.

The arguments are a directory for the recording, the number of threads and the number of steps of
each. Each thread trains its own model.
"""

from __future__ import annotations

import sys
import threading

import torch

import cirron_otel as ci


def train(steps: int) -> None:
    """Train a small model."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    """Train in threads."""
    directory, count, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ci.profile(output_dir=directory, frameworks=["torch"], exporters="none", join="none")
    threads = [threading.Thread(target=train, args=(steps,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ci.shutdown()


if __name__ == "__main__":
    main()
