"""Records while its wall clock is stepped back by an hour, and on. Argument: directory.

The clock is the C library's, as `stepped.c` tells it, or, where that could not be built, Python's
`time` alone. It prints how far `time.time_ns` went back.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

HOUR_NS = 3600 * 10**9

directory = sys.argv[1]
real = time.time_ns
if "LD_PRELOAD" not in os.environ:
    offset = 0
    time.time_ns = lambda: real() - offset
    time.time = lambda: time.time_ns() / 1e9

import cirron_otel as ci  # noqa: E402


def steps(first: int) -> None:
    for number in range(first, first + 50):
        with ci.scope("step", index=number) as span:
            ci.mark("number", number)
            span.add_event("happened")
        ci.flush()


ci.profile(frameworks=[], output_dir=directory, flush_interval=0.01)
with ci.scope("epoch"):
    steps(0)
    before = time.time_ns()
    if "LD_PRELOAD" in os.environ:
        Path(os.environ["STEPPED_BACK"]).touch()
    else:
        offset = HOUR_NS
    after = time.time_ns()
    steps(50)
ci.shutdown()
ci.profile(frameworks=[], output_dir=directory, flush_interval=0.01)
steps(100)
ci.shutdown()
print(json.dumps(before - after))
