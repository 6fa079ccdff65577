"""Trains in forked and spawned children and in threads, in one case after the other.

    python -m tests.sdk.instrumentation.torch.programs.training_processes DIRECTORY CASE...

Each case is traced into a directory of its own, below DIRECTORY. Prints, by the case, the pids of
the children, and what was logged.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import cirron_otel as ci

BATCHES, BATCH = 4, 2


class Net(nn.Module):
    """A small model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Trainer:
    """A loop of which one step can be made."""

    def __init__(self, accumulate: int = 1) -> None:
        self.model, self.criterion = Net(), nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(torch.ones(BATCHES * BATCH, 2), BATCH)
        self.accumulate = accumulate

    def step(self, number: int, batch: Tensor) -> None:
        self.criterion(self.model(batch), batch[:, :1]).backward()
        if (number + 1) % self.accumulate == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def epoch(self, at: int = -1, then: Callable[[], None] = lambda: None) -> None:
        """All batches; `then` is called between forward and backward of batch `at`."""
        for number, batch in enumerate(self.loader):
            if number == at:
                loss = self.criterion(self.model(batch), batch[:, :1])
                then()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            else:
                self.step(number, batch)


def child() -> None:
    """What a child trains."""
    trainer = Trainer()
    for _ in range(2):
        trainer.epoch()


def forked(_: Path) -> list[int]:
    """In the middle of a step a child is forked, that leaves as `os.fork`'s children do."""
    pids: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                child()
                code = 0 if ci.shutdown() else 2
            finally:
                os._exit(code)
        pids.append(pid)
        assert os.waitpid(pid, 0)[1] == 0

    trainer = Trainer()
    trainer.epoch(1, fork)
    trainer.epoch()
    return pids


def multiprocessed(_: Path) -> list[int]:
    """The same by multiprocessing, whose children leave by themselves."""
    pids: list[int] = []

    def fork() -> None:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        pids.append(process.pid or 0)

    Trainer().epoch(1, fork)
    return pids


def grandchild(_: Path) -> list[int]:
    """A forked child that trains forks one that trains."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        trainer = Trainer()
        trainer.epoch()
        inner = os.fork()
        if not inner:
            child()
            ci.shutdown()
            os._exit(0)
        os.waitpid(inner, 0)
        os.write(write, str(inner).encode())
        trainer.epoch()
        ci.shutdown()
        os._exit(0)
    os.waitpid(pid, 0)
    return [pid, int(os.read(read, 100))]


def _spawned(rank: int, directory: str) -> None:
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank + 1), "2"
    torch.set_num_threads(1)
    ci.profile(output_dir=directory, join="none")
    child()
    # It leaves without `shutdown`.


def spawned(directory: Path) -> list[int]:
    """A child of torch.multiprocessing.spawn that calls profile() itself."""
    context: Any = torch.multiprocessing.spawn(
        _spawned, args=(str(directory),), nprocs=1, join=False
    )
    pids = list(context.pids())
    while not context.join():
        pass
    return pids


def threads(directory: Path) -> list[int]:
    """Threads that end in the middle: a tail without a step, an epoch that was left, a step.

    Returns how many forwards are in the spool then.
    """
    # What a thread leaves is gone before it ends, or after: both are looked at.
    kept: list[Any] = []

    def tail() -> None:
        Trainer(accumulate=3).epoch()

    def left() -> None:
        trainer = Trainer()
        iterator = iter(trainer.loader)
        kept.append(iterator)
        trainer.step(0, next(iterator))
        trainer.step(1, next(iterator))

    def without_loader() -> None:
        trainer = Trainer(accumulate=2)
        for number in range(3):
            trainer.step(number, torch.ones(2, 2))

    for work in (tail, left, without_loader):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    ci.flush()
    batches = [json.loads(path.read_bytes()) for path in (directory / "spool").glob("*.json")]
    return [sum(span["name"] == "forward" for batch in batches for span in batch["spans"])]


def side_by_side(_: Path) -> list[int]:
    """Two threads train at the same time, each its own model, while this one does, too."""
    barrier = threading.Barrier(3)

    def train() -> None:
        Trainer().epoch(1, barrier.wait)  # type: ignore[arg-type]

    others = [threading.Thread(target=train) for _ in range(2)]
    for thread in others:
        thread.start()
    train()
    for thread in others:
        thread.join()
    return []


CASES: dict[str, Callable[[Path], list[int]]] = {
    each.__name__: each
    for each in (forked, multiprocessed, grandchild, spawned, threads, side_by_side)
}


def main() -> None:
    directory, names = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("cirron_otel").addHandler(handler)
    told: dict[str, Any] = {"pid": os.getpid()}
    for name in names:
        profiler = ci.profile(output_dir=directory / name, frameworks=["torch"], join="none")
        told[name] = CASES[name](directory / name)
        ci.shutdown()
        said += [f"{name}: {problem}" for problem in profiler.health()["swallowed_errors"]]
    print(json.dumps({**told, "said": said}))


if __name__ == "__main__":
    main()
