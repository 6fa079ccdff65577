"""Training processes, killed at random moments. Arguments: a directory each, a process each.

Each is forked from this process, which has opened no session, and so starts at once. What they are
killed with cannot be caught. It prints their pids.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time

from opentelemetry import trace

import cirron_otel as ci
import cirron_otel.sdk.session.api

PAUSE_S = 0.0003


def train(own: str) -> None:
    """A step after the other, each with a number of its own."""
    for epoch in itertools.count():
        with ci.scope("epoch", index=epoch):
            for step in range(40):
                with ci.scope("step", index=step), ci.scope("forward"):
                    ci.mark(own, 40 * epoch + step)
                ci.mark("seen", step)
                time.sleep(PAUSE_S)


def serve() -> None:
    """Spans of others around scopes, and marks on the session."""
    tracer = trace.get_tracer("server")
    while True:
        with tracer.start_as_current_span("request"), ci.scope("answer"):
            ci.mark("length", 3)
        ci.mark("served", True)
        time.sleep(PAUSE_S)


def record(directory: str, ready: int) -> None:
    ci.profile(frameworks=[], output_dir=directory, flush_interval=0.02)
    threads = [
        threading.Thread(target=serve),
        threading.Thread(target=train, args=("number b",)),
    ]
    for thread in threads:
        thread.start()
    os.write(ready, b"!")
    train("number a")


pids = []
for directory in sys.argv[1:]:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            record(directory, writer)
        finally:
            os._exit(3)
    os.close(writer)
    is_ready = os.read(reader, 1) == b"!"
    time.sleep(random.uniform(0.0, 0.3))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)
    if not is_ready:
        sys.exit(f"{directory}: it did not even begin")
    pids.append(pid)
print(json.dumps(pids))
