"""Two ranks of torch.multiprocessing: their rank is an argument, not a variable.

`spawned_ranks MOMENT DIRECTORY [METHOD]`: profile() is called before or after init_process_group,
or, with the moment `never`, not at all. METHOD starts the processes: `spawn` (the default) or
`fork`.
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
    """Train one epoch of three steps as this rank of two; a worker loads the data."""
    if moment == "before":
        ci.profile(output_dir=directory, workers=True)
        ci.flush()
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
    if moment == "after":
        ci.profile(output_dir=directory, workers=True)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    points = TensorDataset(torch.randn(24, 8))
    for (x,) in DataLoader(points, batch_size=8, num_workers=1):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    distributed.destroy_process_group()
    ci.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        moment, output, method = [*sys.argv[1:], "spawn"][:3]
        arguments = (moment, output, str(Path(folder) / "meeting"))
        multiprocessing.start_processes(train, arguments, nprocs=2, start_method=method)
