"""A job with a cause of lost time after the other: `job.py DIRECTORY SEEN`.

Its input is slow for a while, then it hangs in a scope `exchange`, then its loss is NaN, and at
last it kills itself. Each state lasts until a file in the directory SEEN shows that the follower
has reported it, such as `appeared INPUT_BOUND`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import cirron_otel as ci

WORK, SLOW = 0.015, 0.025
STEPS = 25


def steps(count: int, loading: float = 0, loss: float = 1.0) -> None:
    for _ in ci.batches(range(count)):
        with ci.scope("data_load"):
            time.sleep(loading)
        with ci.scope("forward"):
            time.sleep(WORK)
        ci.mark("loss", loss)


def main() -> None:
    directory, seen = sys.argv[1:]

    def is_seen(event: str) -> bool:
        return Path(seen, event).exists()

    ci.profile(output_dir=directory, frameworks="none")
    steps(STEPS)
    while not is_seen("appeared INPUT_BOUND"):
        steps(5, SLOW)
    while not is_seen("ended INPUT_BOUND"):
        steps(5)
    for _ in ci.batches(range(1)):
        with ci.scope("exchange"):
            while not is_seen("appeared STALLED"):
                time.sleep(0.1)
    while not is_seen("ended STALLED"):
        steps(5)
    while not is_seen("appeared NON_FINITE"):
        steps(5, loss=float("nan"))
    os.kill(os.getpid(), signal.SIGKILL)


main()
