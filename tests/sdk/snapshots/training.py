"""Small trainings with snapshots, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cirron_otel as ci
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.spool.reader import SpoolReader

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]
GRADIENTS = [f"{name}.grad" for name in NAMES]


def model(size: int = 6) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(size, 5), nn.ReLU(), nn.Linear(5, 1))


def train(model: Any, epochs: int = 2) -> list[dict[str, Any]]:
    """Train with `ci.epochs`; the weights and gradients at the end of each epoch."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for _ in ci.epochs(range(epochs)):
        for _ in ci.batches(range(2)):
            optimizer.zero_grad()
            model(torch.randn(4, model[0].in_features)).square().sum().backward()
            optimizer.step()
        seen.append(
            {name: each.detach().clone() for name, each in model.named_parameters()}
            | {f"{name}.grad": each.grad.clone() for name, each in model.named_parameters()}
        )
    return seen


def batches(directory: Path) -> list[dict[str, Any]]:
    files = sorted((directory / "spool").glob("*.json"))
    return [json.loads(file.read_bytes()) for file in files]


def snapshots(directory: Path) -> list[dict[str, Any]]:
    return [record for batch in batches(directory) for record in batch["snapshots"]]


def epochs(directory: Path) -> list[dict[str, Any]]:
    """The spans of epochs, in order."""
    spans = [span for batch in batches(directory) for span in batch["spans"]]
    return sorted((s for s in spans if s["name"] == "epoch"), key=lambda s: int(s["start_ns"]))


def by_epoch(directory: Path) -> list[dict[str, dict[str, Any]]]:
    """For each epoch its records by the tensor's name."""
    some = snapshots(directory)
    return [
        {record["tensor_name"]: record for record in some if record["span_id"] == span["id"]}
        for span in epochs(directory)
    ]


def path_of(record: dict[str, Any]) -> Path:
    return Path(record["blob_uri"].removeprefix("file://"))


def see_it_is_right(directory: Path, notes: frozenset[str] | set[str] = frozenset()) -> None:
    """What `spool verify` has to say: nothing but notes of these codes."""
    found = [each for each in verify_spool(SpoolReader(directory)) if each.code not in notes]
    assert [str(each) for each in found] == []
