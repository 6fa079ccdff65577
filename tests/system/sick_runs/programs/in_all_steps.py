"""Programs of one process whose cause costs time in every step, or between steps."""

from __future__ import annotations

import copy
import gc
import time
from typing import Any

from .job import Job, program

SLOW_S = 0.03
"""The seconds that a cause takes in each step.

The rest of a step takes 8 ms, and longer on a machine with other load."""


@program("INPUT_BOUND", phase="data_load")
def slow_dataset(job: Job) -> None:
    """The dataset is slow, and there are no workers."""
    job.sleep("fetch", SLOW_S)


@program("INPUT_BOUND", phase="data_load")
def slow_collate(job: Job) -> None:
    """The function that joins samples to a batch is slow."""
    job.sleep("collate", SLOW_S)


@program("INPUT_BOUND", phase="data_load")
def few_workers(job: Job) -> None:
    """One worker takes longer for a batch than a step takes."""
    job.workers, job.backward_s = 1, 0.02
    job.sleep("fetch", 2 * SLOW_S)


@program("WAIT_HEAVY")
def transform_in_main_thread(job: Job) -> None:
    """The program changes each batch between the fetch and the forward pass."""
    job.sleep("batch", SLOW_S)


@program("WAIT_HEAVY")
def slow_conversion(job: Job) -> None:
    """The program converts each batch to another type, again and again."""

    def convert(_: int) -> None:
        import torch

        batch, end = torch.ones(64, 1024), time.perf_counter() + SLOW_S
        while time.perf_counter() < end:
            batch = batch.to(torch.float64).to(torch.float32)

    job.plant("batch", convert)


@program("FORWARD_HEAVY", phase="forward", is_notice=True)
def forward_of_small_operations(job: Job) -> None:
    """The forward pass consists of many small operations, one after the other."""
    job.steps = 150

    def compute(_: int) -> None:
        import torch

        value, end = torch.zeros(()), time.perf_counter() + SLOW_S
        while time.perf_counter() < end:
            value = value + 1

    job.plant("forward", compute)


@program("LOSS_HEAVY", phase="loss")
def slow_loss_module(job: Job) -> None:
    job.sleep("loss", SLOW_S)


@program("WAIT_HEAVY", "LOSS_HEAVY")
def slow_loss_function(job: Job) -> None:
    """A function, which is not a module, computes a part of the loss."""
    job.sleep("loss_function", SLOW_S)


@program("OPTIMIZER_HEAVY", phase="optimizer_step")
def slow_optimizer(job: Job) -> None:
    job.sleep("optimizer", SLOW_S)


@program("OPTIMIZER_HEAVY", phase="optimizer_step")
def optimizer_of_many_parameters(job: Job) -> None:
    """A second optimizer steps hundreds of small parameters; in the twin, they are one tensor."""
    job.steps = 40
    count, size = (1500, 1) if job.is_sick else (1, 1500)

    def start(_: int) -> None:
        import torch

        parameters = [torch.nn.Parameter(torch.zeros(4 * size)) for _ in range(count)]
        for each in parameters:
            each.grad = torch.zeros(4 * size)
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=False)
        job.on("after_step", lambda _: optimizer.step())

    job.on("start", start)


@program("OPTIMIZER_HEAVY", phase="scheduler_step")
def slow_scheduler(job: Job) -> None:
    job.has_scheduler = True
    job.sleep("scheduler", SLOW_S)


@program("OPTIMIZER_HEAVY", phase="clip_grad")
def slow_clipping(job: Job) -> None:
    job.clips = True
    job.sleep("clip", SLOW_S)


@program("BETWEEN_UNITS")
def item_and_print_in_every_step(job: Job) -> None:
    """The program prints the loss after each step, to a slow terminal."""

    def log(step: int) -> None:
        print(step, job.loss.item(), flush=True)
        time.sleep(SLOW_S if job.is_sick else 0)

    job.on("after_step", log)


@program("LOGGING_HEAVY", phase="logging")
def logging_in_every_step(job: Job) -> None:
    """The program logs in a scope of its own after each step; the twin after each 20th."""

    def log(step: int) -> None:
        import cirron_otel as ci

        if job.is_sick or step % 20 == 19:
            with ci.scope("logging"):
                time.sleep(SLOW_S)

    job.on("after_step", log)


class _Weights:
    """Weights that take long to copy."""

    def __deepcopy__(self, _: Any) -> _Weights:
        time.sleep(SLOW_S)
        return self


@program("BETWEEN_UNITS")
def copy_of_the_weights_in_every_step(job: Job) -> None:
    """An average of the weights copies the model after each step; in the twin after each 20th."""
    weights = _Weights()

    def average(step: int) -> None:
        if job.is_sick or step % 20 == 19:
            copy.deepcopy(weights)

    job.on("after_step", average)


@program("EVALUATION_HEAVY", phase="eval")
def frequent_evaluation(job: Job) -> None:
    """An evaluation takes as long as ten steps, after each 5 of them; in the twin once."""
    job.evaluate_every = 5 if job.is_sick else job.steps
    job.on("evaluation", lambda _: time.sleep(0.02))


@program("CHECKPOINT_HEAVY", phase="checkpoint_save", every=5)
def frequent_checkpoints(job: Job) -> None:
    job.checkpoint_every = 5 if job.is_sick else job.steps
    job.on("checkpoint", lambda _: time.sleep(0.06))


@program("OTHER_SCOPE", phase="rollout", is_notice=True)
def scope_of_the_program(job: Job) -> None:
    """Most of the time is in a scope of the program, which may be right."""
    job.steps = 150

    def roll_out(_: int) -> None:
        import cirron_otel as ci

        with ci.scope("rollout"):
            time.sleep(SLOW_S if job.is_sick else 0)

    job.on("after_step", roll_out)


class _Cycle:
    """An object that only the garbage collector frees, which takes a while."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(SLOW_S)


@program("GARBAGE_COLLECTION", "BETWEEN_UNITS")
def garbage_collection_in_every_step(job: Job) -> None:
    """The time of collections is not recorded apart."""

    def collect(_: int) -> None:
        _Cycle()
        gc.collect(0)

    job.plant("after_step", collect)
