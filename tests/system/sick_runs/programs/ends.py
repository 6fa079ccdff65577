"""Programs of one process that fail, restart or stall, or whose values or memory go wrong."""

from __future__ import annotations

from typing import Any

from .job import Job, kill_this_process, program

SAMPLED = (("CIRRON_SAMPLE_INTERVAL", "0.1"),)


def _mark_loss(job: Job) -> None:
    import cirron_otel as ci

    job.on("after_step", lambda _: ci.mark("loss", job.loss.item()))


@program("NON_FINITE", units=((40, 40),))
def loss_that_is_not_a_number(job: Job) -> None:
    _mark_loss(job)
    if job.is_sick:
        job.scale = lambda step: float("nan") if step >= 40 else 1.0


@program("DIVERGING")
def loss_that_grows(job: Job) -> None:
    _mark_loss(job)
    job.steps = 80
    if job.is_sick:
        job.scale = lambda step: 1.1 ** max(step - 40, 0)


@program("EXPLODING_GRADIENT", units=((40, 40),))
def gradient_that_explodes(job: Job) -> None:
    import cirron_otel as ci

    job.clips = True
    job.on("after_step", lambda _: ci.mark("grad_norm", job.norm.item()))
    if job.is_sick:
        job.gradient_scale = lambda step: 1e5 if step == 40 else 1.0


@program("CREEP_CONFIRMED", variables=SAMPLED)
def memory_that_grows(job: Job) -> None:
    """The program keeps 14 MB of each step."""
    job.steps, job.backward_s = 120, 0.03
    kept: list[Any] = []

    def keep(_: int) -> None:
        import torch

        kept.append(torch.ones(3_500_000))

    job.plant("forward", keep)


@program("OUT_OF_MEMORY", units=((30, 30),))
def out_of_memory_and_retried(job: Job) -> None:
    """The program catches the error, and continues with half of the batch."""
    failed: list[int] = []

    def allocate(step: int) -> None:
        import torch

        if step == 30 and not failed:
            failed.append(step)
            try:
                torch.empty(1 << 50)
            except RuntimeError as error:
                raise torch.OutOfMemoryError(str(error)) from error

    job.plant("forward", allocate)


@program("FAILED", units=((30, 30),), exit_code=1)
def exception_in_the_program(job: Job) -> None:
    def fail(step: int) -> None:
        if step == 30:
            raise ValueError("shapes cannot be multiplied")

    job.plant("forward", fail)


@program("FAILED", exit_code=1)
def exception_in_a_worker(job: Job) -> None:
    job.workers, job.backward_s = 1, 0.02

    def fail(step: int) -> None:
        if step == 40:
            raise OSError("the file ends too early")

    job.plant("fetch", fail)


@program("KILLED", exit_code=137, is_launched=True)
def killed_process(job: Job) -> None:
    def end(step: int) -> None:
        if step == 50:
            kill_this_process()

    job.plant("after_step", end)


@program("RESTARTED", restarts=1, is_launched=True)
def restarted_job(job: Job) -> None:
    """The job fails in its 50th step, and the launcher starts it again at its last checkpoint."""
    state = job.folder / "step"
    job.start = int(state.read_text()) if state.exists() else 0

    def save(step: int) -> None:
        if step == 20:
            state.write_text(str(step + 1))
        if step == 50 and job.start == 0:
            raise ConnectionError("the storage is gone")

    job.plant("after_step", save)


@program("STALLED", units=((59, 59),))
def stall_at_the_end(job: Job) -> None:
    """The last step takes much longer than the others."""
    job.sleep("forward", 2.0, lambda step: step == job.steps - 1)


@program("START_UP", is_notice=True)
def slow_start(job: Job) -> None:
    """The program prepares its data for seconds: a notice in a run of less than a minute."""
    job.sleep("start", 4.0)
