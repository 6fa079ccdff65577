"""The training loop of all programs: real PyTorch, whose work is mostly sleep.

Other load on the machine therefore changes the times little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from .job import Job

WIDTH = 16


class Items(Dataset[tuple[torch.Tensor, int]]):
    """Samples that take as long to read as the hooks at `fetch`."""

    def __init__(self, job: Job, size: int) -> None:
        self.job, self.size = job, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % self.job.batch == 0:
            self.job.at("fetch", self.job.start + index // self.job.batch)
        return torch.full((WIDTH,), (index % 7) / 7), index % 4


class Loader(DataLoader[Any]):
    """Calls the hooks at `pass_start` at the first fetch of each pass."""

    job: Job

    def __iter__(self) -> Any:
        self.job.at("pass_start")
        return super().__iter__()


class Work(torch.autograd.Function):
    """Sleeps in the forward pass and in the backward pass, and calls the hooks there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, job: Job) -> torch.Tensor:
        ctx.job = job
        time.sleep(job.forward_s)
        job.at("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        job = ctx.job
        time.sleep(job.backward_s)
        job.at("backward")
        factor = 1.0 if job.gradient_scale is None else job.gradient_scale(job.step)
        return gradients[0] * factor, None


class Model(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.layers(x)
        if not self.training:
            self.job.at("evaluation")
            return out
        return Work.apply(out, self.job)


class Criterion(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.job.at("loss")
        loss = nn.functional.cross_entropy(outputs, labels)
        return loss if self.job.scale is None else loss * self.job.scale(self.job.step)


class Optimizer(torch.optim.SGD):
    job: Job

    def step(self, closure: Any = None) -> Any:
        self.job.at("optimizer")
        return super().step(closure)


class Scheduler(torch.optim.lr_scheduler.StepLR):
    job: Job | None = None

    def step(self, epoch: int | None = None) -> None:
        if self.job is not None:
            self.job.at("scheduler")
        super().step(epoch)


class State:
    """A part of a checkpoint that takes as long to save as the hooks at `checkpoint`."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __reduce__(self) -> Any:
        self.job.at("checkpoint")
        return (dict, ())


def train(job: Job) -> None:
    """Train the model of a job from its first step to its last one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if world > 1:
        distributed.init_process_group("gloo")
    raw = Model(job)
    job.model = raw if world == 1 else _distributed(job, raw)
    optimizer = Optimizer(job.model.parameters(), lr=1e-4)
    optimizer.job = job
    scheduler = Scheduler(optimizer, 1000)
    scheduler.job = job
    criterion = Criterion(job)
    loader = _loader(job, (job.steps - job.start) * job.batch, job.workers)
    validation = _loader(job, 4 * job.batch, 0)
    job.step = job.start
    job.at("start")
    for _ in range(job.epochs):
        for inputs, labels in loader:
            job.at("batch")
            try:
                outputs = job.model(inputs)
            except torch.OutOfMemoryError:
                outputs = job.model(inputs[: job.batch // 2])
            job.loss = criterion(outputs, labels[: len(outputs)])
            job.at("loss_function")
            optimizer.zero_grad()
            job.loss.backward()
            if job.clips:
                job.norm = nn.utils.clip_grad_norm_(_parameters(job), 1.0)
            optimizer.step()
            if job.has_scheduler:
                scheduler.step()
            job.at("after_step")
            job.step += 1
            if job.evaluate_every and job.step % job.evaluate_every == 0:
                _evaluate(job, validation)
            if job.checkpoint_every and job.step % job.checkpoint_every == 0:
                torch.save({"model": raw.state_dict(), "state": State(job)}, job.folder / "last.pt")
        job.at("epoch_end")
    if world > 1:
        distributed.destroy_process_group()


def _distributed(job: Job, model: Model) -> nn.Module:
    if job.wrapper == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
        return model
    return model if job.wrapper == "none" else nn.parallel.DistributedDataParallel(model)


def _loader(job: Job, size: int, workers: int) -> Loader:
    def collate(items: list[Any]) -> Any:
        job.at("collate")
        return default_collate(items)

    loader = Loader(
        Items(job, size), batch_size=job.batch, collate_fn=collate, num_workers=workers,
        persistent_workers=job.is_persistent and workers > 0,
        worker_init_fn=lambda number: job.at("worker_start", number),
    )  # fmt: skip
    loader.job = job
    return loader


def _parameters(job: Job) -> Iterator[nn.Parameter]:
    """Yield the parameters; the hooks at `clip` are called while they are clipped."""
    job.at("clip")
    yield from job.model.parameters()


def _evaluate(job: Job, batches: Iterable[Any]) -> None:
    job.model.eval()
    with torch.no_grad():
        for inputs, _ in batches:
            job.model(inputs)
    job.model.train()
