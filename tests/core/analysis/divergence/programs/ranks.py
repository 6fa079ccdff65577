"""Two ranks that train in several ways; faults occur on rank 1 alone, at step 14.

    python -m tests.core.analysis.divergence.programs.ranks DIRECTORY NAME...

A name is a kind of training and a fault, such as `ddp-weight`. The spool of both ranks is in the
directory of that name, with a hash of each rank's weights. With the fault `untraced`, nothing is
recorded.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import cirron_otel as ci
from tests.kit.program_server import run_ranks

from .training import LENGTH

AT = 14
EPOCHS = 3
LIMIT_S = 540.0
"""The time limit of all trainings together, which is below that of the test."""


class Replicas:
    """Both ranks train the same model with batches of their own."""

    def __init__(self, rank: int, fault: str) -> None:
        self.rank, self.fault, self.step = rank, fault, 0
        torch.manual_seed(self.seed())
        self.inner = self.build()
        self.model = self.wrapped(self.inner)
        self.parameters = list(self.model.parameters())
        if rank == 1 and fault == "initial":
            self.change(self.parameters[0])
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.05)
        torch.manual_seed(50 + rank)

    def seed(self) -> int:
        return 1

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return DistributedDataParallel(inner)

    def change(self, tensor: torch.Tensor) -> None:
        with torch.no_grad():
            tensor.mul_(1.5)

    def has_fault(self, name: str) -> bool:
        return (self.rank, self.step, self.fault) == (1, AT, name)

    def loss(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs).square().mean()

    def graded(self) -> None:
        """The gradients of this rank are complete."""

    def stepped(self) -> None:
        """The optimizer has stepped."""

    def one(self, inputs: torch.Tensor) -> None:
        if self.has_fault("batch"):
            inputs = inputs + 1  # after it was digested
        if self.has_fault("early"):
            self.change(self.parameters[0])
        loss = self.loss(inputs)
        self.optimizer.zero_grad()
        loss.backward()
        self.graded()
        if self.has_fault("weight"):
            self.parameters[0].data.view(torch.int32).view(-1)[0] ^= 1 << 16
        self.optimizer.step()
        self.stepped()
        self.step += 1

    def run(self) -> None:
        for epoch in range(EPOCHS):
            with ci.scope("epoch", index=epoch):
                data = torch.utils.data.TensorDataset(torch.randn(4 * LENGTH, 6))
                for (inputs,) in torch.utils.data.DataLoader(data, batch_size=4):
                    self.one(inputs)


class Normed(Replicas):
    """BatchNorm has statistics of its own in each rank."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


class Averaged(Replicas):
    """The program averages the gradients itself, and has forgotten the initial weights."""

    def seed(self) -> int:
        return self.rank

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return inner

    def graded(self) -> None:
        for each in self.parameters:
            dist.all_reduce(each.grad)
            each.grad.div_(2)


class Local(Replicas):
    """Each rank steps with its own gradients, and then the weights are averaged."""

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return inner

    def stepped(self) -> None:
        with torch.no_grad():
            for each in self.parameters:
                dist.all_reduce(each)
                each.div_(2)


class Sharded(Replicas):
    """FSDP: each rank has a part of each tensor."""

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return fully_shard(inner, mesh=dist.init_device_mesh("cpu", (2,)))


class EqualShards(Sharded):
    """Parts of the same shape, and a loss that gives each row of the weight the same gradient."""

    def build(self) -> nn.Module:
        return nn.Linear(6, 4)

    def loss(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs).sum()


class Stages(Replicas):
    """A pipeline of stages with equal names, shapes and initial weights; a warm-up begins at 0."""

    def __init__(self, rank: int, fault: str) -> None:
        super().__init__(rank, fault)
        self.warm_up = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: step / 30)

    def build(self) -> nn.Module:
        return nn.Linear(6, 6)

    def wrapped(self, inner: nn.Module) -> nn.Module:
        return inner

    def loss(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.rank == 0:
            self.sent = self.model(inputs)
            dist.send(self.sent.detach(), 1)
            gradient = torch.empty_like(self.sent)
            dist.recv(gradient, 1)
            return (self.sent * gradient).sum()
        received = torch.empty_like(inputs)
        dist.recv(received, 0)
        received.requires_grad_()
        result = self.model(received).square().mean()
        (gradient,) = torch.autograd.grad(result, received, retain_graph=True)
        dist.send(gradient, 0)
        return result

    def stepped(self) -> None:
        self.warm_up.step()


KINDS: dict[str, Callable[[int, str], Replicas]] = {
    "ddp": Replicas, "norm": Normed, "averaged": Averaged, "local": Local, "fsdp": Sharded,
    "equal": EqualShards, "stages": Stages,
}  # fmt: skip


def fingerprint(training: Replicas) -> str:
    found = hashlib.sha256()
    for each in training.parameters:
        part = each.detach().to_local() if hasattr(each, "to_local") else each.detach()
        found.update(bytes(part.reshape(-1).view(torch.uint8).tolist()))
    return found.hexdigest()


def train(folder: Path, names: list[str]) -> dict[str, Any]:
    """Train all as one rank."""
    torch.set_num_threads(1)
    rank, store = int(os.environ["RANK"]), f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for name in names:
        kind, fault = name.split("-")
        if fault != "untraced":
            ci.profile(
                output_dir=folder / name, digest="tensors", snapshots=None, sample_interval=None,
                exporters=[],
            )  # fmt: skip
        training = KINDS[kind](rank, fault)
        training.run()
        if fault != "untraced":
            ci.shutdown()
        (folder / f"{name}.{rank}").write_text(fingerprint(training))
    dist.destroy_process_group()
    return {}


def main(folder: Path, names: list[str]) -> None:
    """Fork both ranks, with the variables that torchrun sets."""
    outputs = folder / "outputs"
    outputs.mkdir()
    statuses = run_ranks(lambda: train(folder, names), 2, outputs, LIMIT_S)
    print(*(path.read_text() for path in outputs.glob("output-*.txt")), file=sys.stderr)
    sys.exit(statuses != [0, 0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
