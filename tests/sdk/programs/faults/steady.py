"""Records at a steady rate. Arguments: directory, records a second, seconds, options as JSON.

The pace is kept by absolute deadlines; a machine that cannot keep it records less, and still rests.
It prints what `volume.py` prints.
"""

from __future__ import annotations

import json
import sys
import time

import cirron_otel as ci

directory, rate, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
options = json.loads(sys.argv[4])
SLICE_S = 0.01

ci.profile(frameworks=[], output_dir=directory, overhead_marks=False, **options)
begun = time.monotonic()
a_slice = int(rate * SLICE_S) // 4
"""Rounds of two scopes with a mark each."""
number = 0
with ci.scope("t"):
    for turn in range(int(seconds / SLICE_S)):
        if time.monotonic() - begun > seconds:
            break
        for _ in range(a_slice):
            name = f"t/{number}"
            with ci.scope(name):
                ci.mark(name, number)
                with ci.scope(f"{name}/a"):
                    ci.mark(f"{name}/a", 0.5)
            number += 1
        time.sleep(max(begun + (turn + 1) * SLICE_S - time.monotonic(), SLICE_S / 5))
took = time.monotonic() - begun
is_done = ci.shutdown(timeout=60)
said = {
    "scopes": 2 * number + 2,
    "marks": 2 * number,
    "is_done": is_done,
    "health": ci.health(),
    "rate": 4 * number / took,
}
print(json.dumps(said))
