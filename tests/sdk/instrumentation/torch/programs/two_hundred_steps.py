"""Trains 200 steps and prints what came of it, to the bit.

    python -m tests.sdk.instrumentation.torch.programs.two_hundred_steps DIRECTORY MODE

MODE is `untraced`, or a mode of snapshots with which the run is traced into DIRECTORY. The model
draws random numbers (dropout), so do the loader (shuffle) and its workers (noise).
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

UNTRACED = "untraced"
EPOCHS, STEPS, BATCH = 4, 50, 4


class Noisy(Dataset[Any]):
    """Points, each another one whenever it is asked for."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(4) + index / 100
        return x, x.sum(0, keepdim=True) * (1 + random.random() / 10)


def train(ci: Any) -> tuple[list[float], nn.Module]:
    """The losses, and the model."""
    model = nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
    )
    if ci is not None:
        ci.watch(model)
    criterion = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    losses = []
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    directory, mode = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    ci: Any = None
    if mode != UNTRACED:
        import cirron_otel as ci

        ci.profile(
            output_dir=directory, frameworks=["torch"], snapshots=mode, sample_rate=0.5,
            flush_interval=0.2, exporters="none", join="none",
        )  # fmt: skip
    losses, model = train(ci)
    if ci is not None:
        ci.shutdown()
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    found = {
        "losses": digest(struct.pack(f"{len(losses)}d", *losses)),
        "last": losses[-1].hex(),
        "weights": digest(weights),
        "next of torch": torch.rand(4).tolist(),
        "next of random": random.random(),
        "next of numpy": np.random.random(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
