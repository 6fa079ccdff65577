"""A small training program with places at which time can be planted.

Each place is a function that the loop calls, with the number of the step or of the evaluation. The
program measures the time in these functions by its own clock: that is the truth of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cirron_otel as ci

FEATURES = 32
Wait = Callable[[int], float]
"""The seconds to wait at a place in the step (or pass) of a number."""

USUAL: Mapping[str, float] = {
    "item": 0.001, "forward": 0.002, "backward": 0.002, "evaluation": 0.05,
}  # fmt: skip
"""The seconds at the places of every run. `item` is one item of a batch."""


@dataclass(frozen=True)
class Job:
    """A run: the waits at its places, and its settings."""

    waits: Mapping[str, Wait] = field(default_factory=dict)
    steps: int = 120
    epochs: int = 2
    batch: int = 4
    workers: int = 0
    evaluate_every: int = 1
    """The number of epochs from one evaluation to the next."""
    checkpoint_every: int = 0
    micro_steps: int = 1
    autocast: bool = False
    foreach: bool = False
    hidden: int = 32
    usual: Mapping[str, float] = field(default_factory=lambda: USUAL)


@dataclass
class Truth:
    """The times of a run by the program's own clock, in s."""

    waited: dict[str, float] = field(default_factory=dict)
    """By place, without the usual time."""
    usual: dict[str, float] = field(default_factory=dict)
    wall: float = 0.0
    """From the end of the first step to the end of the loop."""
    first_end: float = 0.0


class _Places:
    def __init__(self, job: Job) -> None:
        self.job, self.truth, self.step = job, Truth(), 0

    def __call__(self, place: str, number: int | None = None) -> None:
        number = self.step if number is None else number
        for kind, seconds in (
            ("usual", self.job.usual.get(place, 0.0)),
            ("waited", self.job.waits.get(place, _nothing)(number)),
        ):
            if seconds > 0:
                begun = time.perf_counter()
                time.sleep(seconds)
                times = getattr(self.truth, kind)
                times[place] = times.get(place, 0.0) + time.perf_counter() - begun


def _nothing(_: int) -> float:
    return 0.0


class _Items(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, number: int, places: _Places) -> None:
        self.number, self.places = number, places

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.places("item", index)
        return torch.full((FEATURES,), index % 7 / 7), index % 3


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, places: _Places) -> torch.Tensor:
        ctx.places = places
        places("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.places("backward")
        return gradients[0], None


class _Net(nn.Module):
    def __init__(self, hidden: int, places: _Places) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        self.places = places

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return _Slow.apply(y, self.places) if self.training else y  # type: ignore[no-untyped-call]


class _Loss(nn.CrossEntropyLoss):
    def __init__(self, places: _Places) -> None:
        super().__init__()
        self.places = places

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        self.places("loss")
        return super().forward(*values)


class _Optimizer(torch.optim.SGD):
    places: _Places

    def step(self, closure: Any = None) -> Any:
        self.places("optimizer")
        return super().step(closure)


class _Schedule(torch.optim.lr_scheduler.StepLR):
    places: _Places | None = None

    def step(self, epoch: int | None = None) -> None:
        if self.places is not None:
            self.places("schedule")
        super().step(epoch)


@contextmanager
def _session(directory: Path, **options: Any) -> Iterator[None]:
    ci.profile(
        output_dir=str(directory), exporters="none", join="none", quiet=True, snapshots=None,
        flush_interval=60, **options,
    )  # fmt: skip
    try:
        yield
    finally:
        ci.shutdown()


def run(job: Job, directory: Path, **options: Any) -> Truth:
    """Train as `job` has it, recorded in a directory; return the times of the program's clock."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    places = _Places(job)
    with _session(directory, **options):
        loader = torch.utils.data.DataLoader(
            _Items(job.steps * job.batch * job.micro_steps // job.epochs, places),
            batch_size=job.batch, num_workers=job.workers,
            collate_fn=_Collate(places),
        )  # fmt: skip
        model, criterion = _Net(job.hidden, places), _Loss(places)
        optimizer = _Optimizer(model.parameters(), lr=0.01, foreach=job.foreach)
        optimizer.places = places
        schedule = _Schedule(optimizer, 1000)
        schedule.places = places
        for epoch in range(job.epochs):
            _epoch(job, places, loader, model, criterion, optimizer, schedule, directory)
            if epoch % job.evaluate_every == 0:
                with ci.scope("evaluation"):
                    places("evaluation", epoch)
            places("epoch_end", epoch)
        places.truth.wall = time.perf_counter() - places.truth.first_end
    return places.truth


class _Collate:
    def __init__(self, places: _Places) -> None:
        self.places = places

    def __call__(self, items: Any) -> Any:
        self.places("collate")
        return torch.utils.data.default_collate(items)


def _epoch(
    job: Job, places: _Places, loader: Any, model: Any, criterion: Any, optimizer: Any,
    schedule: Any, directory: Path,
) -> None:  # fmt: skip
    for number, (x, y) in enumerate(loader):
        places("transform")
        with torch.autocast("cpu", enabled=job.autocast):
            output = model(x)
            loss = criterion(output, y)
        places("loss_function")
        if number % job.micro_steps == 0:
            optimizer.zero_grad()
        loss.backward()
        if (number + 1) % job.micro_steps:
            continue
        places("after_backward")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if "own" in job.waits:
            with ci.scope("augment"):
                places("own")
        places("after")
        if "log" in job.waits:
            with ci.scope("log_metrics"):
                places("log")
        places.step += 1
        places.truth.first_end = places.truth.first_end or time.perf_counter()
        if job.checkpoint_every and places.step % job.checkpoint_every == 0:
            with ci.scope("checkpoint"):
                places("checkpoint", places.step)
                torch.save(model.layers.state_dict(), directory.parent / "weights.pt")
