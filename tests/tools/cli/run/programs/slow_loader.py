"""A training whose steps wait for their data, without the hooks: `slow_loader.py STEPS [FILE]`.

After its steps it waits until FILE exists, if one is given.
"""

import sys
import time
from pathlib import Path

import cirron_otel as ci

ci.profile(frameworks=[], flush_interval=0.02)
for _ in ci.batches(range(int(sys.argv[1]))):
    with ci.scope("data_load"):
        time.sleep(0.004)
    with ci.scope("forward"):
        time.sleep(0.002)
while len(sys.argv) > 2 and not Path(sys.argv[2]).exists():
    time.sleep(0.01)
ci.shutdown()
