"""One process of the torch benchmark: it trains a small model, a block at a time, as it is told.

Run as a file by any interpreter that has torch, `torch_worker.py SUBJECT OPTIONS`: OPTIONS is a
JSON object that holds the fields of Work under `work`; the rest goes to the tool. Commands come as
JSON lines on standard input, each is answered by a line on what was standard output, and what a
tool prints goes to standard error. Nothing is imported but torch, the standard library and the
tool, so that a neighbour's environment needs nothing of ours.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

LINEAR_LAYERS = 13
"""With a ReLU between each two, and the root: 26 modules."""

_SIDE = 264
"""Of the matrices: they fit the cache of a core, and leave little room beside them."""

WARM_STEPS = 40
"""Steps before each block that do not count: other processes, or a flush, have run before it."""


@dataclass(frozen=True)
class Work:
    """What is trained."""

    width: int
    batch: int
    steps: int
    """Of an epoch, which is one pass over the loader."""
    products: int = 0
    """Of matrices, in each layer: work that makes a step longer."""


class _Linear(nn.Linear):
    """A layer with work of its own besides, as a frozen part of a model has.

    It is done in matrices that stay: what a step allocates makes its length differ from block to
    block, by several times of what is measured.
    """

    def __init__(self, width: int, products: int) -> None:
        super().__init__(width, width)
        self.products = products
        self.work = (torch.full((_SIDE, _SIDE), 1e-3), torch.empty(_SIDE, _SIDE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor, product = self.work
        for _ in range(self.products):
            torch.mm(factor, factor, out=product)
        return super().forward(x)


class Training:
    """A plain loop, written without a thought of any tool."""

    def __init__(self, work: Work) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(LINEAR_LAYERS - 1):
            layers += [_Linear(work.width, work.products), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.Linear(work.width, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        samples = work.batch * work.steps
        data = TensorDataset(torch.randn(samples, work.width), torch.randn(samples, 1))
        self.loader = DataLoader(data, batch_size=work.batch, shuffle=True)
        few = Subset(data, range(min(samples, WARM_STEPS * work.batch)))
        self.warming = DataLoader(few, batch_size=work.batch)
        self.others: list[type] = []

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Everything of a step but the fetch."""
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def evaluation(self, ends: list[int]) -> None:
        """One pass without gradients, as `epoch`."""
        model, clock = self.model, time.perf_counter_ns
        model.eval()
        with torch.no_grad():
            for x, y in self.loader:
                nn.functional.mse_loss(model(x), y)
                ends.append(clock())
        model.train()

    def calls(self, ends: list[int]) -> None:
        """As many calls of the model without gradients and without a loader."""
        model, clock = self.model, time.perf_counter_ns
        x, _ = next(iter(self.warming))
        model.eval()
        with torch.no_grad():
            for _ in range(len(self.loader)):
                model(x)
                ends.append(clock())
        model.train()

    def add_classes(self, number: int) -> None:
        """Let so many classes of modules be alive, as in a program with large libraries."""
        missing = max(number - _classes_below(nn.Module), 0)
        self.others += [type("Other", (nn.Module,), {}) for _ in range(missing)]

    def epoch(self, ends: list[int]) -> None:
        """One pass; `ends` gets the time at the end of each step, ns."""
        step, clock = self.step, time.perf_counter_ns
        for x, y in self.loader:
            step(x, y)
            ends.append(clock())


def _classes_below(base: type) -> int:
    return 1 + sum(map(_classes_below, base.__subclasses__()))


class Bare:
    """No tool; each tool says what it does otherwise."""

    def __init__(self, training: Training, options: dict[str, Any]) -> None:
        self.training, self.options = training, options
        self.epoch: Callable[[list[int]], None] = training.epoch

    def install(self) -> None:
        """Turn the tool on as its documentation says."""

    def settle(self) -> None:
        """Let nothing that was recorded wait any longer."""

    def close(self) -> dict[str, int]:
        """End it; what it dropped, and what went wrong, as it counts them itself."""
        return {}


class Cirron(Bare):
    """Ours or cirron-sdk, which share an API: `profile()` before the plain loop."""

    module = "cirron_otel"
    frameworks: tuple[str, ...] = ("torch",)

    def install(self) -> None:
        self.sdk: Any = importlib.import_module(self.module)
        self.sdk.profile(frameworks=list(self.frameworks), **self.options)

    def settle(self) -> None:
        self.sdk.flush()

    def close(self) -> dict[str, int]:
        health = self.sdk.health()
        self.sdk.shutdown()
        return {name: count for name, count in health.items() if name.endswith("_count")}


class CirronSdk(Cirron):
    """The neighbour whose API it is."""

    module = "cirron"


class ByHand(Cirron):
    """Ours without hooks, the same tree by calls in the loop: what hooks cost comes on top."""

    frameworks = ()

    def install(self) -> None:
        super().install()
        self.epoch = self._epoch

    def _epoch(self, ends: list[int]) -> None:
        scope, training, clock = self.sdk.scope, self.training, time.perf_counter_ns
        model, optimizer = training.model, training.optimizer
        with scope("epoch"):
            batches = iter(training.loader)
            for index in range(len(training.loader)):
                with scope("step", index=index):
                    with scope("data_load"):
                        x, y = next(batches)
                    optimizer.zero_grad()
                    with scope("forward"):
                        out = model(x)
                    loss = nn.functional.mse_loss(out, y)
                    with scope("backward"):
                        loss.backward()
                    with scope("optimizer_step"):
                        optimizer.step()
                ends.append(clock())


class TraceML(Bare):
    """traceml-ai: `init()`, and `trace_step(model)` around each step; its aggregator listens."""

    def install(self) -> None:
        traceml: Any = importlib.import_module("traceml_ai")
        traceml.init(mode="auto", on_missing_aggregator="raise", **self.options)
        self._trace_step = traceml.trace_step
        self.epoch = self._epoch

    def _epoch(self, ends: list[int]) -> None:
        training, clock, trace_step = self.training, time.perf_counter_ns, self._trace_step
        model, step = training.model, training.step
        for x, y in training.loader:
            with trace_step(model):
                step(x, y)
            ends.append(clock())


SUBJECTS: dict[str, type[Bare]] = {
    "bare": Bare,
    "cirron-otel": Cirron,
    "by hand": ByHand,
    "cirron-sdk": CirronSdk,
    "traceml-ai": TraceML,
}


def _queued_ns() -> int:
    """How long this thread could have run and had no core, so far; 0 where Linux does not say."""
    try:
        with Path("/proc/thread-self/schedstat").open() as counters:
            return int(counters.read().split()[1])
    except (OSError, IndexError):
        return 0


def _clocks() -> dict[str, int]:
    """All that is read before and after a block, ns."""
    wall, queued = time.perf_counter_ns(), _queued_ns()
    return {
        "wall": wall,
        "unqueued": wall - queued,
        "thread": time.thread_time_ns(),
        "process": time.process_time_ns(),
    }


def block(subject: Bare, epochs: int, doing: str = "") -> dict[str, float]:
    """Train that many epochs, or do something else: µs a step by several clocks."""
    gc.collect()
    training = subject.training
    epoch = getattr(training, doing) if doing else subject.epoch
    training.loader, loader = training.warming, training.loader
    epoch([])
    training.loader = loader
    ends: list[int] = []
    laps: list[int] = []
    start = _clocks()
    for _ in range(epochs):
        first = len(ends)
        epoch(ends)
        # What precedes the first step of an epoch, the loader's start, is in the means alone.
        laps += [ends[k] - ends[k - 1] for k in range(first + 1, len(ends))]
    means = {name: (now - start[name]) / len(ends) / 1e3 for name, now in _clocks().items()}
    return {"step": statistics.median(laps) / 1e3, **means}


def answer(subject: Bare, command: dict[str, Any]) -> dict[str, Any]:
    """Do what the command says; what there is to report of it."""
    match command["do"]:
        case "install":
            subject.install()
        case "settle":
            subject.settle()
        case "block":
            return block(subject, command["epochs"], command.get("doing", ""))
        case "classes":
            subject.training.add_classes(command["number"])
        case "close":
            return subject.close()
        case other:
            raise ValueError(f"expected a command that `answer` knows, found {other!r}")
    return {}


def main(name: str, options_json: str) -> None:
    """Serve until the end of the input."""
    options: dict[str, Any] = json.loads(options_json)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger("cirron").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    subject = SUBJECTS[name](Training(Work(**options.pop("work"))), options)
    for line in sys.stdin:
        print(json.dumps(answer(subject, json.loads(line))), file=replies, flush=True)
    os._exit(0)  # the tool has been closed, and torch takes a second to be torn down


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
