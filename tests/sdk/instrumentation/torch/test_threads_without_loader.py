"""Threads that train without a loader: each has its own steps, and no thread disturbs another."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci
from cirron_otel.semconv import OVERHEAD_NS
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.spool_trees import Spool, read_spool

PROGRAM = "tests.sdk.instrumentation.torch.programs.threads_without_loader"
PHASES = ("forward", "zero_grad", "backward", "optimizer_step")


def run(scripts: ForkedScripts, directory: Path, threads: int, steps: int) -> Spool:
    """Run the program in a process, and return its spool."""
    done = scripts.module(PROGRAM, directory, threads, steps)
    assert done.returncode == 0, done.stderr[-2000:]
    return read_spool(directory)


def test_threads_with_a_model_each_have_their_own_steps(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    """Reading a gradient that another thread replaces crashes the process."""
    threads, steps = 4, 400
    spool = run(scripts, tmp_path, threads, steps)
    names = Counter(span["name"] for span in spool.spans)
    assert spool.lost == []
    for name in ("step", *PHASES):
        assert names[name] == threads * steps
    steps_of = Counter(span["parent_id"] for span in spool.spans if span["name"] in PHASES)
    assert set(steps_of.values()) == {len(PHASES)}
    assert min(overheads(spool)) >= 0


def overheads(spool: Spool) -> list[int]:
    """Return the times that recording took, ns."""
    return [mark["value"] for mark in spool.marks if mark["name"] == OVERHEAD_NS]


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
    """Counts in which threads the gradient of its weight is read; has an optimizer."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.weight = Watched(torch.ones(1, 4))
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        self.loss: Any = None

    def begin_step(self) -> None:
        """Compute a loss."""
        self.loss = self(torch.ones(2, 4)).sum()

    def end_step(self) -> None:
        """Run the backward pass and the optimizer."""
        self.loss.backward()
        self.optimizer.step()

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


def test_time_of_the_hooks_is_moved_to_the_step_of_its_thread(
    threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor], tmp_path: Path
) -> None:
    """Both threads add to the session, the parent of their phases until their optimizers step."""
    first, second = [(thread, Model()) for thread in threads]
    for thread, model in (first, second, first, second):
        thread.submit(model.begin_step).result()
        thread.submit(model.end_step).result()
    for thread, model in (first, second):
        thread.submit(model.begin_step).result()
    for thread, model in (first, second):
        thread.submit(model.end_step).result()
    first[0].submit(first[1].begin_step).result()
    second[0].submit(second[1].begin_step).result()
    second[0].submit(second[1].end_step).result()
    first[0].submit(first[1].end_step).result()
    ci.shutdown()
    spool = read_spool(tmp_path)
    assert sum(span["name"] == "step" for span in spool.spans) == 8
    assert min(overheads(spool)) > 0
