"""A MemoryError of Python under a real limit; the program continues, or fails, and ends."""

from __future__ import annotations

import resource
import sys

import cirron_otel as ci

MIB = 1 << 20
soft = 700 * MIB


@ci.scope("step")
def step(count: int) -> int:
    return len([bytearray(MIB) for _ in range(count)])


ci.profile(output_dir=sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))
try:
    step(2000)
except MemoryError:
    print("retried:", step(50))
if "uncaught" in sys.argv:
    step(2000)
