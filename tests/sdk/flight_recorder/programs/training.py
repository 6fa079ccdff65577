"""A training loop that runs out of memory in the phase that it is told; `caught` goes on."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import cirron_otel as ci

DIRECTORY, WHERE, ENDING = sys.argv[1:4]
OPTIONS: dict[str, Any] = {"detail_every": 100} if "folded" in sys.argv else {}
AT = 2
"""The step that fails."""


def run_out() -> None:
    torch.empty(1 << 60, dtype=torch.float32)


class Rows(Dataset[Tensor]):
    """Its third batch does not fit, if the data is to fail."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if WHERE == "data_load" and index == 2 * AT:
            run_out()
        return torch.ones(4)


class Hungry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, is_hungry: bool) -> Tensor:
        ctx.is_hungry = is_hungry
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.is_hungry:
            run_out()
        return gradient, None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.number = 0

    def forward(self, x: Tensor) -> Tensor:
        is_due = self.number == AT
        if WHERE == "forward" and is_due:
            run_out()
        return Hungry.apply(self.linear(x), WHERE == "backward" and is_due)


class Optimizer(torch.optim.SGD):
    due = False

    def step(self, closure: Any = None) -> Any:
        if self.due:
            run_out()
        return super().step(closure)


net = Net()
optimizer = Optimizer(net.parameters(), lr=0.1)
loader = DataLoader(Rows(), batch_size=2)


def step(batch: Tensor) -> None:
    net(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if WHERE == "step" and net.number == AT:
        run_out()
    net.number += 1
    optimizer.due = WHERE == "optimizer_step" and net.number == AT


def train() -> None:
    for batch in loader:
        if ENDING == "caught":
            try:
                step(batch)
            except RuntimeError:
                net.number += 1
                optimizer.due = False
        else:
            step(batch)


ci.profile(output_dir=DIRECTORY, **OPTIONS)
train()
print("trained")
