"""The simulated training job of compose.yaml, with some slow and some failing steps.

It needs no PyTorch. The environment sets EPOCHS, STEPS (per epoch), SPEED (2: twice as fast) and
the rank.
"""

from __future__ import annotations

import contextlib
import os
import random
import time

import cirron_otel as ci

EPOCHS = int(os.environ.get("EPOCHS", "20"))
STEPS = int(os.environ.get("STEPS", "200"))
SPEED = float(os.environ.get("SPEED", "1"))
RANK = int(os.environ.get("RANK", "0"))

chance = random.Random(RANK)  # noqa: S311 - nothing here is secret


def work(milliseconds: float) -> None:
    """Sleep for about that time; the second rank takes longer."""
    time.sleep(chance.uniform(0.8, 1.2) * (1 + 0.3 * RANK) * milliseconds / 1000 / SPEED)


def train(step: int) -> None:
    """Run one step: every 50th waits for its data, every 75th fails."""
    with ci.scope("data_load"):
        work(300 if step % 50 == 49 else 5)
    with ci.scope("forward"):
        work(12)
        ci.mark("loss", 2 / (step + 1) + chance.random() / 10)
    with ci.scope("backward"):
        work(20)
        if step % 75 == 74:
            raise FloatingPointError("the loss is not finite")
    with ci.scope("optimizer_step"):
        work(4)


ci.profile(frameworks="none")
for _ in ci.epochs(range(EPOCHS)):
    for number in ci.batches(range(STEPS)):
        with contextlib.suppress(FloatingPointError):
            train(number)
ci.shutdown()
