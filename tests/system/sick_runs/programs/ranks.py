"""Programs of two ranks that wait for each other; in most of them rank 1 has the cause."""

from __future__ import annotations

import time

from .in_all_steps import SLOW_S
from .job import Job, kill_this_process, program


@program("INPUT_STRAGGLER", ranks=2, slow_ranks=(1,), phase="data_load")
def rank_with_slow_input(job: Job) -> None:
    job.sleep("fetch", SLOW_S, rank=1)


@program("INPUT_STRAGGLER", ranks=2, slow_ranks=(1,), phase="data_load")
def sharded_rank_with_slow_input(job: Job) -> None:
    """FSDP2: the other rank waits in its forward pass."""
    job.wrapper = "fsdp"
    job.sleep("fetch", SLOW_S, rank=1)


@program("COMPUTE_STRAGGLER", ranks=2, slow_ranks=(1,), phase="forward")
def rank_with_slow_forward(job: Job) -> None:
    job.sleep("forward", SLOW_S, rank=1)


@program("COMPUTE_STRAGGLER", ranks=2, slow_ranks=(1,), phase="backward")
def rank_with_slow_backward(job: Job) -> None:
    """The phase in which the other rank waits is the slow one."""
    job.sleep("backward", SLOW_S, rank=1)


@program("WAIT_STRAGGLER", ranks=2, slow_ranks=(1,))
def rank_with_slow_transform(job: Job) -> None:
    job.sleep("batch", SLOW_S, rank=1)


@program("COMPUTE_STRAGGLER", ranks=2, moving=True)
def ranks_that_are_slow_in_turn(job: Job) -> None:
    job.sleep("forward", SLOW_S, lambda step: step % 2 == job.rank)


@program("COMPUTE_STRAGGLER", ranks=2, slow_ranks=(1,), phase="forward", units=((50, 79),))
def rank_that_is_slow_for_a_while(job: Job) -> None:
    job.steps = 120
    job.sleep("forward", SLOW_S, lambda step: 50 <= step < 80, rank=1)


@program("SPIKES", ranks=2, slow_ranks=(1,), phase="forward", every=20)
def rank_that_is_slow_now_and_then(job: Job) -> None:
    job.steps = 120
    job.sleep("forward", 0.4, lambda step: step % 20 == 15, rank=1)


@program("INPUT_BOUND", ranks=2, phase="data_load")
def slow_input_of_all_ranks(job: Job) -> None:
    job.sleep("fetch", SLOW_S)


@program("CHECKPOINT_HEAVY", ranks=2, slow_ranks=(0,), phase="checkpoint_save", every=5)
def rank_that_saves_checkpoints(job: Job) -> None:
    """Rank 0 saves checkpoints, and rank 1 waits for it."""
    if job.rank == 0:
        job.checkpoint_every = 5 if job.is_sick else job.steps
    job.on("checkpoint", lambda _: time.sleep(0.06))


@program("EVALUATION_HEAVY", ranks=2, slow_ranks=(0,), phase="eval")
def rank_that_evaluates(job: Job) -> None:
    """Rank 0 evaluates, and rank 1 waits for it."""
    if job.rank == 0:
        job.evaluate_every = 5 if job.is_sick else job.steps
    job.on("evaluation", lambda _: time.sleep(0.02))


@program("UNEVEN", ranks=2, slow_ranks=(1,))
def rank_with_fewer_steps(job: Job) -> None:
    """Rank 1 has half of the data; the ranks do not wait for each other."""
    job.wrapper = "none"
    if job.is_sick and job.rank == 1:
        job.steps //= 2


@program("KILLED", ranks=2, slow_ranks=(1,), exit_code=None, is_launched=True)
def killed_rank(job: Job) -> None:
    def end(step: int) -> None:
        if step == 30 and job.rank == 1:
            kill_this_process()

    job.plant("after_step", end)


@program("FAILED", ranks=2, slow_ranks=(1,), units=((30, 30),), exit_code=None, is_launched=True)
def rank_that_fails(job: Job) -> None:
    def fail(step: int) -> None:
        if step == 30 and job.rank == 1:
            raise ValueError("shapes cannot be multiplied")

    job.plant("forward", fail)
