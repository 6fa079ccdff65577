"""A job whose loading is slow for a while: `changing.py DIRECTORY [SEEN... [stall]]`.

There is a directory SEEN for each follower. Each state lasts until a file in each of them shows
that the follower has reported it, such as `appeared INPUT_BOUND`. With `stall`, it then stalls in a
scope `exchange`, and goes on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cirron_otel as ci

WORK, SLOW = 0.015, 0.025
STEPS = 25


def steps(count: int, loading: float) -> None:
    for _ in ci.batches(range(count)):
        with ci.scope("data_load"):
            time.sleep(loading)
        with ci.scope("forward"):
            time.sleep(WORK)


def main() -> None:
    directory, *words = sys.argv[1:]
    followers = [word for word in words if word != "stall"]

    def is_seen(event: str) -> bool:
        return all(Path(seen, event).exists() for seen in followers)

    ci.profile(output_dir=directory, frameworks="none")
    steps(STEPS, 0)
    steps(STEPS, SLOW)
    while not is_seen("appeared INPUT_BOUND"):
        steps(5, SLOW)
    steps(STEPS, 0)
    while not is_seen("gone INPUT_BOUND"):
        steps(5, 0)
    if "stall" in words:
        for _ in ci.batches(range(1)):
            with ci.scope("exchange"):
                while not is_seen("appeared STALLED"):
                    time.sleep(0.1)
        steps(STEPS, 0)
        while not is_seen("gone STALLED"):
            steps(5, 0)
    ci.shutdown()


main()
