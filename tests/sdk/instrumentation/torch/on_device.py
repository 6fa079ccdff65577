"""Sessions with a simulated device, and models that enqueue work on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.torch import cuda
from tests.kit.sessions.spool_trees import Node, read_spool
from tests.sdk.instrumentation.device import Device

FORWARD_MS, LOSS_MS, BACKWARD_MS, RECOMPUTE_MS, OPTIMIZER_MS = 5, 1, 10, 5, 3
NS_PER_MS = 1_000_000


@contextmanager
def session(
    directory: Path,
    patch: pytest.MonkeyPatch,
    device: Device | None = None,
    *,
    devices: frozenset[str] = frozenset(),
    memory: Any = None,
    **options: Any,
) -> Iterator[Any]:
    """The profiler of a session with the clock of `device`, that counts copies to `devices`."""
    patch.setattr(cuda, "clock_of", lambda *_: device.clock if device is not None else None)
    patch.setattr(cuda, "devices", lambda: devices)
    patch.setattr(cuda, "memory_of", lambda _: memory)
    profiler = ci.profile(
        **{
            "output_dir": str(directory), "frameworks": ["torch"], "exporters": "none",
            "join": "none", "handle_signals": False, "snapshots": None, "flush_interval": 600,
            **options,
        }
    )  # fmt: skip
    try:
        yield profiler
    finally:
        ci.shutdown()
    if device is not None:
        assert device.violations == []


def tree(directory: Path) -> Node:
    """The session that was recorded."""
    return read_spool(directory).session


def gpu_ms(node: Node) -> float | None:
    """Its time on the device."""
    found = node.record["gpu_ns"]
    return None if found is None else found / NS_PER_MS


def loader(batches: int = 3) -> DataLoader[Any]:
    """One row to a batch."""
    return DataLoader(TensorDataset(torch.ones(batches, 4), torch.ones(batches, 1)), 1)


class Layer(nn.Linear):
    """Computes on the device."""

    def __init__(self, device: Device) -> None:
        super().__init__(4, 4)
        self.device = device

    def forward(self, x: Tensor) -> Tensor:
        self.device.work(FORWARD_MS)
        return super().forward(x)


class Model(nn.Module):
    """A layer, checkpointed or not, whose backward has work for the device, too."""

    def __init__(self, device: Device, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.first, self.layer, self.head = nn.Linear(4, 4), Layer(device), nn.Linear(4, 1)
        self.device, self.is_checkpointed = device, is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.is_checkpointed:
            x = checkpoint(self.layer, x, use_reentrant=False)
        else:
            x = self.layer(x)
        out = self.head(x)
        if out.requires_grad:
            out.register_hook(lambda _: self.device.work(BACKWARD_MS))
        return out


class Criterion(nn.MSELoss):
    """A criterion."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        self.device.work(LOSS_MS)
        return super().forward(out, y)


class Optimizer(torch.optim.SGD):
    """An optimizer."""

    device: Device

    def step(self, closure: Any = None) -> Any:
        self.device.work(OPTIMIZER_MS)
        return super().step(closure)


def parts(device: Device, **options: Any) -> tuple[Model, Criterion, Optimizer]:
    """Model, criterion and optimizer."""
    torch.manual_seed(0)
    model = Model(device, **options)
    optimizer = Optimizer(model.parameters(), lr=0.01)
    optimizer.device = device
    return model, Criterion(device), optimizer
