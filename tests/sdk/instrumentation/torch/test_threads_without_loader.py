"""Threads that train without a loader: each has its own steps, and no thread disturbs another."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci
from tests.kit.sessions.spool_trees import Spool, read_spool

PROGRAM = "tests.sdk.instrumentation.torch.programs.threads_without_loader"
PHASES = ("forward", "zero_grad", "backward", "optimizer_step")


def run(directory: Path, threads: int, steps: int) -> Spool:
    """Run the program in a process, and return its spool."""
    command = [sys.executable, "-m", PROGRAM, str(directory), str(threads), str(steps)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return read_spool(directory)


def test_threads_with_a_model_each_have_their_own_steps(tmp_path: Path) -> None:
    """Reading a gradient that another thread replaces crashes the process."""
    threads, steps = 4, 400
    spool = run(tmp_path, threads, steps)
    names = Counter(span["name"] for span in spool.spans)
    assert spool.lost == []
    for name in ("step", *PHASES):
        assert names[name] == threads * steps
    steps_of = Counter(span["parent_id"] for span in spool.spans if span["name"] in PHASES)
    assert set(steps_of.values()) == {len(PHASES)}


class Watched(torch.nn.Parameter):
    """Counts how often its gradient is read in each thread."""

    @property
    def grad(self) -> Any:
        self.__dict__.setdefault("reads", Counter())[threading.get_ident()] += 1
        return torch.Tensor.grad.__get__(self)  # type: ignore[attr-defined]

    @grad.setter
    def grad(self, value: Any) -> None:
        torch.Tensor.grad.__set__(self, value)  # type: ignore[attr-defined]


class Model(torch.nn.Linear):
    """Counts in which threads the gradient of its weight is read."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.weight = Watched(torch.ones(1, 4))

    def backward(self) -> Counter[int]:
        """Run a backward pass, and return how often each thread read the gradient in it."""
        before = Counter(self.weight.__dict__.get("reads"))
        self(torch.ones(2, 4)).sum().backward()
        return Counter(self.weight.__dict__.get("reads")) - before


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    """Two threads of a recorded run."""
    ci.profile(output_dir=tmp_path, frameworks=["torch"], exporters="none", join="none")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        yield first, second
    ci.shutdown()


def test_thread_reads_only_gradients_of_its_own_model(threads: Any) -> None:
    models = [Model(), Model()]
    for _ in range(3):
        for thread, model in zip(threads, models, strict=True):
            thread.submit(model.backward).result()
    for thread, model in zip(threads, models, strict=True):
        assert set(model.weight.reads) == {thread.submit(threading.get_ident).result()}


def test_gradient_of_a_model_that_several_threads_train_is_not_read(threads: Any) -> None:
    """Another thread may replace it; if that thread only called the model, it does not."""
    first, second = threads
    model = Model()
    second.submit(model, torch.ones(2, 4)).result()
    assert first.submit(model.backward).result()
    for thread in (second, first, second):
        assert not thread.submit(model.backward).result()
    second.shutdown()
    assert first.submit(model.backward).result()
