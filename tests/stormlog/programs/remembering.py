"""A run of our own with marks about memory: `remembering.py DIRECTORY [MODE]`.

The marks are those of the sampler, which this program makes itself so that their values are known.
The mode is `sampled`, or `unsampled` for a run without a sample.
"""

from __future__ import annotations

import sys
import threading

import cirron_otel as ci

BYTES = 100_000_000


def sample(number: int) -> None:
    """Make the mark of one sample."""
    ci.mark(
        "memory", BYTES + number, device_id=0, backend="cuda", allocator_reserved_bytes=2 * BYTES,
        device_used_bytes=3 * BYTES, device_total_bytes=10 * BYTES, process_rss_bytes=BYTES,
    )  # fmt: skip


def main(directory: str, mode: str) -> None:
    ci.profile(frameworks=[], output_dir=directory, flush_interval=3600)
    number = 0
    for _ in ci.epochs(range(2)):
        for _ in ci.batches(range(3)):
            with ci.scope("forward", layers=2):
                number += 1
                if mode == "sampled":
                    sample(number)
            with ci.scope("backward"):
                pass
    if mode == "sampled":
        ci.mark("memory.warning", 9 * BYTES, limit="cuda:0", share=0.9, threshold=0.85)
        with ci.scope("large"):
            ci.mark("oom", 20 * BYTES, reason="torch.cuda.OutOfMemoryError", backend="cuda")
    other = threading.Thread(target=_other)
    other.start()
    other.join()
    ci.shutdown()


def _other() -> None:
    with ci.scope("elsewhere"):
        ci.mark("loss", 1.0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "sampled")
