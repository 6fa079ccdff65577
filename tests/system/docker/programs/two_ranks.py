"""A job of two ranks that wait for each other in `backward`: `python two_ranks.py`.

Planted are a slow rank, SLOW_RANK, in `forward`; a slow step, SLOWEST, in which rank 0 waits for
its batch; and a gap of GAP_S seconds between two steps of both ranks.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

RANKS, STEPS = 2, 60
SLOW_RANK, SLOWEST = 1, 41
GAP_S = 1.0


def loss(step: int) -> float:
    return 2.0 / (step + 1)


def train(rank: int, barrier: Any) -> None:
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(RANKS)
    import cirron_otel as ci

    ci.profile(frameworks=[])
    barrier.wait()  # the first step contains no imports of the other rank
    for half in (range(STEPS // 2), range(STEPS // 2, STEPS)):
        for step in ci.batches(half):
            with ci.scope("data_load"):
                time.sleep(0.5 if (rank, step) == (0, SLOWEST) else 0.002)
            with ci.scope("forward"):
                time.sleep(0.03 if rank == SLOW_RANK else 0.01)
            with ci.scope("backward"):
                barrier.wait()
                ci.mark("loss", loss(step))
        if half.start == 0:
            time.sleep(GAP_S)
    ci.shutdown()


def main() -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RANKS)
    ranks = [context.Process(target=train, args=(rank, barrier)) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()


if __name__ == "__main__":
    main()
