"""Run a command on a disturbed machine, to find the tests that depend on which process is faster.

    python -m tests.kit.disturbed busy COMMAND [ARGUMENT…]
    python -m tests.kit.disturbed paused COMMAND [ARGUMENT…]

With `busy`, a process for each core uses the CPU all the time. With `paused`, processes that the
command has started, at random, are stopped for up to two seconds each; the seed is printed, and
`CIRRON_OTEL_SEED` sets it. The exit status is the command's. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

LONGEST_PAUSE_S = 2.0
INTERVAL_S = 0.5
"""The mean time between two pauses."""
_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>


def descendants() -> list[int]:
    """Return the running processes below this one.

    A process that is stopped is left out: a test may have stopped it, and waits for that.
    """
    children = defaultdict(list)
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):
                state, parent = (each / "stat").read_text().rpartition(")")[2].split()[:2]
                children[int(parent)].append((int(each.name), state))
    found, waiting = [], [os.getpid()]
    while waiting:
        for pid, state in children[waiting.pop()]:
            waiting.append(pid)
            if state not in "TtZX":
                found.append(pid)
    return sorted(found)


def pause(process: subprocess.Popen[bytes], drawn: random.Random) -> int:
    """Stop processes at random until `process` has ended; return how many pauses there were."""
    ends: dict[int, float] = {}
    pauses = 0
    due = time.monotonic()
    while process.poll() is None:
        now = time.monotonic()
        for pid in [pid for pid, end in ends.items() if end <= now]:
            del ends[pid]
            _send(pid, signal.SIGCONT)
        if now >= due:
            due = now + drawn.expovariate(1 / INTERVAL_S)
            if found := descendants():
                pid = drawn.choice(found)
                if _send(pid, signal.SIGSTOP):
                    ends[pid] = now + drawn.uniform(0, LONGEST_PAUSE_S)
                    pauses += 1
        time.sleep(0.01)
    for pid in ends:
        _send(pid, signal.SIGCONT)
    return pauses


def _send(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False


def main(arguments: list[str]) -> int:
    """Run the command of `arguments`, and return its exit status."""
    if len(arguments) < 2 or arguments[0] not in ("busy", "paused"):
        print(__doc__, file=sys.stderr)
        return 2
    kind, *command = arguments
    seed = int(os.environ.get("CIRRON_OTEL_SEED") or random.SystemRandom().randrange(2**32))
    # Processes whose parents have ended stay below this one.
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    busy = (os.cpu_count() or 1) if kind == "busy" else 0
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        process = subprocess.Popen(command)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the command, too
        if kind == "busy":
            status = process.wait()
        else:
            print(f"disturbed: seed {seed}", file=sys.stderr, flush=True)
            print(f"disturbed: {pause(process, random.Random(seed))} pauses", file=sys.stderr)
            status = process.returncode
    finally:
        for each in others:
            each.kill()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
