"""Programs of one process whose cause costs time in some steps, or more and more."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from .job import Job, burn, program


@program("SLOW_FIRST_BATCH", phase="data_load")
def workers_started_in_each_epoch(job: Job) -> None:
    """Workers take long to start, and do so in each epoch."""
    job.epochs, job.steps, job.workers, job.backward_s = 8, 10, 1, 0.02
    job.is_persistent = not job.is_sick
    job.on("worker_start", lambda _: time.sleep(0.3))


@program("SLOW_FIRST_BATCH", phase="data_load")
def slow_first_batch_of_each_epoch(job: Job) -> None:
    """The dataset opens its files anew in each epoch."""
    job.epochs, job.steps = 8, 10
    job.sleep("fetch", 0.3, lambda step: step == 0)


@program("INPUT_SPIKES", phase="data_load", every=25)
def slow_fetches_now_and_then(job: Job) -> None:
    """The dataset fills its buffer anew before each 25th batch."""
    job.steps = 150
    job.sleep("fetch", 0.5, lambda step: step % 25 == 20)


@program("SPIKES", phase="forward", every=20)
def slow_forward_now_and_then(job: Job) -> None:
    job.steps = 120
    job.sleep("forward", 0.4, lambda step: step % 20 == 15)


@program("SLOWING_DOWN", phase="forward")
def slower_with_each_step(job: Job) -> None:
    """The forward pass takes 0.5 ms longer in each step."""
    job.steps = 120
    job.plant("forward", lambda step: time.sleep(0.0005 * step))


@program("SLOW_INTERVAL", phase="forward", units=((50, 79),))
def slow_for_a_while(job: Job) -> None:
    job.steps = 120
    job.sleep("forward", 0.03, lambda step: 50 <= step < 80)


@program("SLOWING_DOWN", phase="backward", units=((60, 119),))
def slower_from_one_step_on(job: Job) -> None:
    job.steps = 120
    job.sleep("backward", 0.03, lambda step: step >= 60)


@program("CPU_CONTENTION", units=((60, 119),))
def other_load_on_the_processor(job: Job) -> None:
    """From step 60 on, four other processes use the same processor.

    A step needs it for 8 ms; in the twin, it does not need it, and there are no others.
    """
    job.steps, job.backward_s = 120, 0.0
    others: list[subprocess.Popen[bytes]] = []
    cpu = min(os.sched_getaffinity(0))
    job.on("start", lambda _: os.sched_setaffinity(0, {cpu}))
    job.plant("forward", lambda _: burn(0.008))

    def begin(step: int) -> None:
        if step == 60:
            command = [sys.executable, "-S", "-E", "-c", "while True: pass"]
            others.extend(subprocess.Popen(command) for _ in range(4))
        if step == job.steps - 1:
            for each in others:
                each.kill()
                each.wait()

    job.plant("after_step", begin)
