"""Two ranks of torch.multiprocessing: their rank is an argument, not a variable.

`spawned_ranks MOMENT DIRECTORY [METHOD]`: profile() is called before or after init_process_group,
or, with the moment `never`, not at all. With `alone`, there is no process group. METHOD starts the
processes: `spawn` (the default) or `fork`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci


def train(rank: int, moment: str, directory: str, meeting: str) -> None:
    """Train one epoch as this rank of two."""
    if moment in ("before", "alone"):
        ci.profile(output_dir=directory, workers=True)
        ci.flush()
    model: nn.Module = nn.Linear(8, 4)
    if moment == "alone":
        epoch(model)
        ci.shutdown()
        return
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
    if moment == "after":
        ci.profile(output_dir=directory, workers=True)
    epoch(DistributedDataParallel(model))
    distributed.destroy_process_group()
    ci.shutdown()


def epoch(model: nn.Module) -> None:
    """Train one epoch of three steps; a worker loads the data."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    points = TensorDataset(torch.randn(24, 8))
    for (x,) in DataLoader(points, batch_size=8, num_workers=1):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        moment, output, method = [*sys.argv[1:], "spawn"][:3]
        arguments = (moment, output, str(Path(folder) / "meeting"))
        multiprocessing.start_processes(train, arguments, nprocs=2, start_method=method)
