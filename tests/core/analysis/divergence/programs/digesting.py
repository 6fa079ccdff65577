"""A training that records digests of its own; FAULT is the step from which its weights differ.

After its last step, it waits for the file PROCEED, if there is such a variable.
"""

import hashlib
import os
import time
from pathlib import Path

import cirron_otel as ci

ci.profile(frameworks=[], flush_interval=0.1)
fault = int(os.environ.get("FAULT", "1000"))
number = 0
for _ in ci.epochs(range(3)):
    for _ in ci.batches(range(10)):
        for name in ("rng", "batch", "loss", "grads", "weights", "optimizer"):
            is_wrong = number > fault or (number == fault and name in ("weights", "optimizer"))
            text = hashlib.sha256(f"{name} {number} {is_wrong}".encode()).hexdigest()[:32]
            ci.mark(f"digest.{name}", text, step=number, occurrence=0)
        number += 1
        time.sleep(0.01)
    if number > fault and (proceed := os.environ.get("PROCEED")):
        while not Path(proceed).exists():
            time.sleep(0.02)
ci.shutdown()
