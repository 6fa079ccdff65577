"""A training loop without a word of tracing, as torchrun or `python` runs it.

Its arguments: `workers=N`, `context=spawn`, `fail`, `kill=RANK`, `ask=URL`.
"""

import os
import signal
import sys

import torch
from torch.utils.data import DataLoader, Dataset

options = {name: value for name, _, value in (each.partition("=") for each in sys.argv[1:])}


class Noise(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if "ask" in options:
            import requests

            requests.get(options["ask"], timeout=30)
        return torch.nn.Identity()(torch.ones(4) * index), index % 2


def train() -> None:
    model = torch.nn.Linear(4, 2)
    rank = os.environ.get("RANK")
    if rank is not None:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        Noise(),
        batch_size=4,
        num_workers=int(options.get("workers", 0)),
        multiprocessing_context=options.get("context"),
    )
    for epoch in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if epoch == 0 and options.get("kill") == (rank or "0"):
            wait_for_a_batch()
            os.kill(os.getpid(), signal.SIGKILL)
    if rank is not None:
        torch.distributed.destroy_process_group()
    if "fail" in options:
        raise RuntimeError("as it was told to")


def wait_for_a_batch() -> None:
    """Until the flush thread has been there."""
    import cirron_otel

    assert cirron_otel.flush(), "this process is recorded"


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()
