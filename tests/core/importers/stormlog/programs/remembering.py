"""Two runs of our own: `remembering.py DIRECTORY`.

In the run `sampled`, the sampler takes samples, and memory runs out twice; `unsampled` is the same
without the sampler.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import cirron_otel as ci

INTERVAL_S = 0.02
REQUESTED = 1 << 62
_WAIT_S = 60.0


def wait_for_a_sample() -> None:
    """Wait until the sampler has taken another sample."""
    before = ci.health()["sampling"]["samples"]
    deadline = time.monotonic() + _WAIT_S
    while ci.health()["sampling"]["samples"] < before + 2:
        if time.monotonic() > deadline:
            raise TimeoutError("no sample was taken")
        time.sleep(INTERVAL_S / 4)


def record(directory: Path, is_sampled: bool) -> None:
    import torch

    interval = INTERVAL_S if is_sampled else None
    ci.profile(
        frameworks=[], output_dir=str(directory), flush_interval=3600, sample_interval=interval
    )
    for epoch in ci.epochs(range(2)):
        for _ in ci.batches(range(3)):
            with ci.scope("forward", layers=2):
                if is_sampled:
                    wait_for_a_sample()
            with ci.scope("backward"):
                pass
        try:
            with ci.scope("large", epoch=epoch):
                torch.empty(REQUESTED, dtype=torch.uint8)
        except RuntimeError:
            pass
    # Whether a limit is nearly used depends on the machine: this alert is made by the program.
    ci.mark("memory.warning", 9, limit="host", limit_bytes=10, share=0.9, threshold=0.85)
    other = threading.Thread(target=_other)
    other.start()
    other.join()
    ci.shutdown()


def _other() -> None:
    with ci.scope("elsewhere"):
        ci.mark("loss", 1.0)


if __name__ == "__main__":
    for name in ("unsampled", "sampled"):
        record(Path(sys.argv[1]) / name, name == "sampled")
