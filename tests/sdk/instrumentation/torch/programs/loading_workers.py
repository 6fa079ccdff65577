"""Loads with the processes of DataLoaders, in one case after the other.

    python -m tests.sdk.instrumentation.torch.programs.loading_workers DIRECTORY CASE...

Each case is traced into a directory of its own, below DIRECTORY. Prints one line of JSON: by the
case, what it computed, which pids its workers had, what they ran, and what was logged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import cirron_otel as ci

ROWS, BATCH = 8, 2


class Rows(Dataset[Any]):
    """Rows: the process that made it, how many threads of ours that has, what it drew, the row."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Tensor:
        ci.mark("row", index)
        # A module in a transform is no forward.
        nn.Linear(1, 1)(torch.ones(1))
        names = [thread.name for thread in threading.enumerate()]
        flushes = sum("cirron" in name for name in names)
        drawn = int(torch.randint(1 << 20, ())) + random.getrandbits(20)
        return torch.tensor([os.getpid(), flushes, drawn, index])


class Stream(IterableDataset[Any]):
    """The same as a stream, shared among the workers."""

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        assert info is not None
        for index in range(info.id, ROWS, info.num_workers):
            yield Rows()[index]


class Failing(Rows):
    """One row cannot be had."""

    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            raise ValueError("no such row")
        return super().__getitem__(index)


class Killed(Rows):
    """The process is killed at a row, when its other rows were flushed, and the loader has them.

    The loader fetches the storage of a batch from the process that made it.
    """

    def __init__(self) -> None:
        self.fetched = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            assert self.fetched.wait(60)
            assert ci.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def stack(rows: list[Tensor]) -> Tensor:
    """A collate function of the user's own."""
    ci.mark("collated", len(rows))
    return torch.stack(rows)


def drain(loader: Any, epochs: int = 2) -> list[Any]:
    """What a loader gives."""
    found = []
    for _ in range(epochs):
        for batch in loader:
            found += batch.reshape(-1, 4).tolist()
    return found


def forked() -> Any:
    return drain(DataLoader(Rows(), BATCH, num_workers=2, multiprocessing_context="fork"))


def spawned() -> Any:
    kinds: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
    return drain(DataLoader(Rows(), BATCH, persistent_workers=True, **kinds))


def streamed() -> Any:
    loader = DataLoader(Stream(), BATCH, num_workers=2, persistent_workers=True, collate_fn=stack)
    assert loader.collate_fn is stack
    return drain(loader)


def single_rows() -> Any:
    return drain(DataLoader(Rows(), batch_size=None, num_workers=1), epochs=1)


def in_this_process() -> Any:
    return drain(DataLoader(Rows(), BATCH), epochs=1)


def failing() -> Any:
    found = 0
    iterator = iter(DataLoader(Failing(), BATCH, num_workers=1))
    with contextlib.suppress(StopIteration):
        while True:
            with contextlib.suppress(ValueError):
                found += len(next(iterator))
    return found


def killed() -> Any:
    try:
        rows = Killed()
        for number, _ in enumerate(DataLoader(rows, BATCH, num_workers=1), 1):
            if number == 2:
                rows.fetched.set()
        return []
    except RuntimeError as error:
        return [str(error)[:17]]


def stateful() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return drain(StatefulDataLoader(Rows(), batch_size=BATCH, num_workers=1), epochs=1)


CASES: dict[str, Callable[[], Any]] = {
    each.__name__: each
    for each in (
        forked, spawned, streamed, single_rows, in_this_process, failing, killed, stateful
    )
}  # fmt: skip


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def main() -> None:
    directory, names = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    said = Said()
    logging.getLogger("cirron_otel").addHandler(said)
    told: dict[str, Any] = {}
    for name in names:
        case, _, option = name.partition("=")
        ci.profile(
            output_dir=directory / name, frameworks=["torch"], workers=option != "off",
            flush_interval=0.05, join="none",
        )  # fmt: skip
        torch.manual_seed(3)
        told[name] = {"rows": CASES[case](), "pid": os.getpid()}
        ci.shutdown()
    print(json.dumps({**told, "said": said.said}))


if __name__ == "__main__":
    main()
