"""Two ranks of a distributed run in one spool directory."""

import os
import subprocess
import sys

import cirron as ci

if "RANK" not in os.environ:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-I", __file__], env={**os.environ, "RANK": str(n), "WORLD_SIZE": "2"}
        )
        for n in range(2)
    ]
    sys.exit(max(rank.wait() for rank in ranks))

ci.profile(snapshots=None)
for _ in ci.epochs(range(2)):
    for _ in ci.batches(range(3)):
        with ci.scope("forward"):
            ci.mark("loss", 0.25)
ci.shutdown()
