"""One rank of two: trainings with DDP and FSDP; faults occur on rank 1 alone, at step 14."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import cirron_otel as ci
from tests.divergence.programs.training import LENGTH, flip


def train(rank: int, kind: str, fault: str) -> None:
    torch.manual_seed(1)
    inner = nn.Linear(8, 2)
    if kind == "ddp":
        model: nn.Module = DistributedDataParallel(inner)
    else:
        model = fully_shard(inner, mesh=dist.init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    torch.manual_seed(rank)
    step = 0
    for epoch in range(3):
        with ci.scope("epoch", index=epoch):
            data = torch.utils.data.TensorDataset(torch.randn(4 * LENGTH, 8))
            for (inputs,) in torch.utils.data.DataLoader(data, batch_size=4):
                is_odd = rank == 1 and step == 14
                if is_odd and fault == "batch":
                    inputs = inputs + 1  # noqa: PLW2901
                loss = model(inputs).square().mean()
                optimizer.zero_grad()
                loss.backward()
                if is_odd and fault == "weight":
                    flip(inner.weight.data)
                optimizer.step()
                step += 1


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    rank, store = int(os.environ["RANK"]), f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for name in names:
        ci.profile(
            output_dir=folder / name, digest="tensors", snapshots=None, sample_interval=None,
            exporters=[],
        )  # fmt: skip
        train(rank, *name.split("-"))
        ci.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
