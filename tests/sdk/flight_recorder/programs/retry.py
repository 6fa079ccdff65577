"""An out-of-memory error under a real limit, and a retry with half the batch.

Prints, as JSON: the error, and the resident set before the attempt, in the handler, and after the
attempt, bytes. With `plain`, cirron_otel is not used.
"""

from __future__ import annotations

import contextlib
import gc
import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch

DIRECTORY, MODE = sys.argv[1:3]
MIB = 1 << 20
FREE = 600 * MIB
"""The address space that is left to the attempts, and to the stack and the heap of a thread."""

if MODE == "plain":

    def scope(_name: str, _index: int | None = None) -> Any:
        return contextlib.nullcontext()

else:
    import cirron_otel as ci

    scope = ci.scope
    ci.profile(output_dir=DIRECTORY, sample_interval=None)


def sizes() -> list[int]:
    """Return the address space and the resident set, bytes."""
    pages = Path("/proc/self/statm").read_text().split()[:2]
    return [int(each) * resource.getpagesize() for each in pages]


def in_use() -> int:
    return sizes()[1]


def forward(batch_bytes: int) -> int:
    with scope("forward"):
        activations = [torch.ones(batch_bytes // 4, dtype=torch.uint8) for _ in range(4)]
        activations.append(torch.ones(batch_bytes, dtype=torch.uint8))
    return sum(each.numel() for each in activations)


def attempt(batch_bytes: int) -> dict[str, Any]:
    before = in_use()
    try:
        with scope("step", 0):
            return {"bytes": forward(batch_bytes), "before": before, "after": in_use()}
    except (RuntimeError, MemoryError) as error:
        told = {"error": str(error), "before": before, "during": in_use()}
    # No collection: what the error held is free as soon as it is handled.
    told["after"] = in_use()
    return told


torch.empty(8)  # the allocator's own first allocations
gc.collect()
gc.disable()
resource.setrlimit(resource.RLIMIT_AS, (sizes()[0] + FREE, resource.RLIM_INFINITY))
failed = attempt(360 * MIB)
retried = attempt(180 * MIB)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps({"failed": failed, "retried": retried}))
