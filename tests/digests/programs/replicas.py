"""Trains six steps in two ranks, with DistributedDataParallel or FSDP2 on the CPU.

    python -m tests.digests.programs.replicas DIRECTORY KIND FAULT

KIND is `ddp` or `fsdp`; FAULT is `none`, or `weight`: rank 1 changes a weight before step 3, or
`untraced`. Each rank writes a hash of its weights to a file.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import distributed, nn

import cirron_otel as ci

STEPS, AT = 6, 3


def train(rank: int, directory: str, kind: str, fault: str, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(5)
    model: nn.Module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    torch.manual_seed(50 + rank)
    data = torch.utils.data.TensorDataset(torch.randn(4 * STEPS, 6), torch.randn(4 * STEPS, 1))
    if fault != "untraced":
        ci.profile(
            digest="tensors", output_dir=str(Path(directory) / str(rank)), exporters="none",
            frameworks=["torch"], sample_interval=None, snapshots=None, quiet=True,
        )  # fmt: skip
    for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, 4)):
        if (fault, rank, step) == ("weight", 1, AT):
            with torch.no_grad():
                next(model.parameters()).mul_(1.5)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ci.shutdown()
    weights = b"".join(
        bytes(
            getattr(each, "to_local", each.detach)().detach().reshape(-1).view(torch.uint8).tolist()
        )
        for each in model.parameters()
    )
    (Path(directory) / f"weights-{rank}").write_text(hashlib.sha256(weights).hexdigest())
    distributed.destroy_process_group()


def main() -> None:
    import socket

    with socket.socket() as found:  # kept until the end: no one else is given the port
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
        mp.spawn(train, (*sys.argv[1:4], port), nprocs=2)


if __name__ == "__main__":
    main()
