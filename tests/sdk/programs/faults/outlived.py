"""A process that is killed, and a child of it that lives on. Argument: directory.

The child prints both pids, records when it is told to, says so, and ends when its input does.
"""

from __future__ import annotations

import os
import signal
import sys

import cirron_otel as ci

directory = sys.argv[1]
ci.profile(frameworks=[], output_dir=directory, flush_interval=0.01)
parent = os.getpid()
opened = ci.scope("epoch")
opened.__enter__()
ci.mark("number", 0)
ci.flush()
if os.fork():
    signal.pause()
os.kill(parent, signal.SIGKILL)
print(parent, os.getpid(), flush=True)
sys.stdin.readline()
with ci.scope("of the child"):
    ci.mark("number", 1)
print(ci.flush(), flush=True)
sys.stdin.read()
