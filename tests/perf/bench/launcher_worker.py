"""A job of the launcher's benchmark, which `cirron-otel run` starts.

`launcher_worker.py beside STEPS PAIRS FILE` runs pairs of blocks of steps, one beside the launcher
and one while it is stopped by a signal. What it does not read in one block it reads in the next.
`launcher_worker.py end STEPS PAUSE_S FILE` runs small steps, with a pause after each hundred.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import cirron_otel as ci

PHASES = ("data_load", "forward", "backward", "optimizer_step")
WORK = 12_000
"""The size of the work of a phase: about half a millisecond."""
_SETTLED_S = 0.05


def cpu_s(pid: int) -> float:
    """The CPU time of a process, without that of its children; it may have ended, unwaited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def train(steps: int, work: int) -> None:
    """Run steps of four phases, each of which computes in Python."""
    for number in range(steps):
        with ci.scope("step", index=number):
            for name in PHASES:
                with ci.scope(name):
                    sum(range(work))


def beside(steps: int, pairs: int) -> list[dict[str, Any]]:
    """Return the seconds of each block: by the clock, of the thread, and of the launcher."""
    launcher, order, figures = os.getppid(), random.Random("launcher"), []
    train(max(steps // 10, 1), WORK)
    try:
        for _ in range(pairs):
            for is_beside in order.sample((True, False), 2):
                os.kill(launcher, signal.SIGCONT if is_beside else signal.SIGSTOP)
                time.sleep(_SETTLED_S)
                gc.collect()
                before = cpu_s(launcher)
                wall, cpu = time.perf_counter(), time.thread_time()
                train(steps, WORK)
                figures.append({
                    "is_beside": is_beside, "wall": time.perf_counter() - wall,
                    "cpu": time.thread_time() - cpu, "launcher": cpu_s(launcher) - before,
                })  # fmt: skip
    finally:
        os.kill(launcher, signal.SIGCONT)
    return figures


def end(steps: int, pause_s: float) -> dict[str, float]:
    """Return the time at the end, and the launcher's CPU time until then."""
    for _ in range(max(steps // 100, 1)):
        train(100, 1)
        time.sleep(pause_s)
    ci.shutdown()
    return {"ended": time.time(), "launcher": cpu_s(os.getppid())}


def main() -> None:
    """Run one of the two jobs, and write its figures into a file."""
    which, steps, rest, file = sys.argv[1:]
    ci.profile()
    job: Any = beside(int(steps), int(rest)) if which == "beside" else end(int(steps), float(rest))
    Path(file).write_text(json.dumps(job))


if __name__ == "__main__":
    main()
