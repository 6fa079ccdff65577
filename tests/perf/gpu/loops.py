"""Models, data and loops that the checks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from .machine import Machine

Around = Callable[[str, Callable[[], Any]], Any]


def plainly(_name: str, function: Callable[[], Any]) -> Any:
    """Call a phase."""
    return function()


class Batches(Dataset[Any]):
    """The same batch, in pinned memory where there is a GPU, so many times."""

    def __init__(self, machine: Machine, rows: int, width: int, number: int) -> None:
        self.batch = torch.ones(rows, width, pin_memory=machine.is_gpu)
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Tensor:
        return self.batch


class Net(nn.Module):
    """Linear layers; the device is kept busy for `busy_ms` more; the middle may be checkpointed."""

    def __init__(
        self, machine: Machine, width: int, layers: int, *, busy_ms: float = 0.0,
        dropout: float = 0.0, is_checkpointed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.machine, self.busy_ms, self.is_checkpointed = machine, busy_ms, is_checkpointed
        self.first = nn.Linear(width, width)
        blocks = [(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)) for _ in range(layers)]
        self.middle = nn.Sequential(*(module for block in blocks for module in block))

    def forward(self, x: Tensor) -> Tensor:
        if self.busy_ms:
            self.machine.work(self.busy_ms)
        x = self.first(x)
        if self.is_checkpointed:
            return checkpoint(self.middle, x, use_reentrant=False)
        return self.middle(x)


class Training:
    """A model, its criterion and optimizer, and the loop over its batches."""

    def __init__(
        self, machine: Machine, width: int, layers: int, *, rows: int = 0, copied: int = 0,
        optimizer: Callable[[Any], Any] = lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
        **options: Any,
    ) -> None:  # fmt: skip
        """`rows` to a batch, `copied` rows are copied to the device (as many by default)."""
        torch.manual_seed(0)
        self.machine, self.rows = machine, rows or width
        self.net = Net(machine, width, layers, **options).to(machine.device)
        self.criterion = nn.MSELoss()
        self.target = torch.zeros(self.rows, width, device=machine.device)
        self.optimizer = optimizer(self.net.parameters())
        self.batches = Batches(machine, copied or self.rows, width, 0)
        self.losses: list[Tensor] = []

    def run(self, steps: int, around: Around = plainly) -> None:
        """So many steps; each phase is called by `around`."""
        self.batches.number = steps
        device = self.machine.device
        for batch in DataLoader(self.batches, batch_size=None):
            x = around("h2d", lambda: batch.to(device, non_blocking=True))[: self.rows]  # noqa: B023
            out = around("forward", lambda: self.net(x))  # noqa: B023
            loss = around("loss", lambda: self.criterion(out, self.target))  # noqa: B023
            around("backward", loss.backward)
            around("optimizer_step", self.optimizer.step)
            self.optimizer.zero_grad()
            self.losses.append(loss.detach())

    def told(self) -> list[float]:
        """The losses so far, from the device."""
        return [float(loss) for loss in torch.stack(self.losses).cpu()]
