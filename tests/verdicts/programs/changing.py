"""A job whose loading is slow for a while: `changing.py DIRECTORY [PAUSE]`.

It waits until the file DIRECTORY/go appears. After its steps it stalls for PAUSE seconds in a
scope `exchange`, and goes on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cirron_otel as ci

WORK, SLOW = 0.03, 0.05
CALM, BUSY = 50, 50


def steps(count: int, loading: float) -> None:
    for _ in ci.batches(range(count)):
        with ci.scope("data_load"):
            time.sleep(loading)
        with ci.scope("forward"):
            time.sleep(WORK)


def main() -> None:
    directory = Path(sys.argv[1])
    pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    ci.profile(output_dir=str(directory), frameworks="none")
    steps(CALM, 0)
    steps(BUSY, SLOW)
    steps(CALM, 0)
    if pause:
        for _ in ci.batches(range(1)):
            with ci.scope("exchange"):
                time.sleep(pause)
        steps(CALM, 0)
    ci.shutdown()


main()
