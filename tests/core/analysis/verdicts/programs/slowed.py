"""Two ranks with DistributedDataParallel, slowed in one place.

Run it as `python -m tests.core.analysis.verdicts.programs.slowed DIRECTORY CASE...`.

It imports torch once, and forks both ranks, with the variables that torchrun sets. Each case is a
run of its own, in the spool DIRECTORY/CASE. The work of a step is mostly sleep, so that other load
on the machine changes its times little.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import cirron_otel as ci
from tests.kit.program_server import run_ranks

STEPS = 60
WORK = 0.008
SLOW = 0.014
"""The seconds by which a place is slowed."""
LIMIT_S = 360.0
"""The time limit of all cases together, which is below that of the test."""


class Data(Dataset[torch.Tensor]):
    def __init__(self, slow: float) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.slow)
        return torch.full((4,), float(index))


class Sleep(torch.autograd.Function):
    """Sleep in the forward pass and in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        time.sleep(forward)
        ctx.backward = backward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        time.sleep(ctx.backward)
        return grads[0], None, None


class Model(nn.Module):
    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.times = forward, backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sleep.apply(self.layer(x), *self.times)


class SlowSGD(torch.optim.SGD):
    pause = 0.0

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.pause)
        return super().step(closure)


def train(case: str, is_slow: bool) -> None:
    """Train for 60 steps; `is_slow` is whether this rank is slowed in the case of a straggler."""

    def extra(place: str) -> float:
        return SLOW if case == place or (is_slow and case == f"{place}_straggler") else 0.0

    model = DistributedDataParallel(
        Model(WORK + extra("forward"), WORK + extra("backward")), gradient_as_bucket_view=False
    )
    optimizer = SlowSGD(model.parameters(), lr=0.001)
    optimizer.pause = extra("optimizer")
    for batch in DataLoader(Data(extra("input")), batch_size=1):
        loss = model(batch).sum()
        time.sleep(extra("wait"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if extra("scope"):
            with ci.scope("augment"):
                time.sleep(extra("scope"))
        time.sleep(extra("outside"))
        if case == "non_finite":
            ci.mark("loss", float("nan"))


def train_all(directory: Path, cases: list[str]) -> dict[str, Any]:
    """Train all cases as one rank."""
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    for case in cases:
        distributed.barrier()
        ci.profile(output_dir=str(directory / case), frameworks="torch")
        train(case, is_slow=distributed.get_rank() == 1)
        ci.shutdown()
    distributed.destroy_process_group()
    return {}


def main() -> None:
    directory, cases = Path(sys.argv[1]).absolute(), sys.argv[2:]
    os.environ["TORCHELASTIC_RUN_ID"] = uuid4().hex
    folder = directory / "ranks"
    folder.mkdir(parents=True)
    if run_ranks(lambda: train_all(directory, cases), 2, folder, LIMIT_S) != [0, 0]:
        sys.exit("".join(path.read_text() for path in folder.glob("output-*.txt")))


if __name__ == "__main__":
    main()
