"""A training process that does what its standard input says, a JSON object a line.

It answers each with a line of JSON; an exception that reaches it, which none of ours ever may, ends
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import resource
import sys
import threading
import time
from typing import Any

import cirron_otel as ci
from cirron_otel.sdk.flush.pipeline import Pipeline

logging.basicConfig(level=logging.WARNING)
open_scopes = contextlib.ExitStack()
made: list[int] = []


def profile(**options: Any) -> bool:
    return ci.profile(frameworks=[], **options).enabled


def steps(n: int, size: int = 0) -> int:
    """Record `n` steps of a scope and a mark each; `size` makes them larger, in bytes."""
    for _ in range(n):
        number = len(made)
        made.append(number)
        with ci.scope("step", index=number, text="x" * size), ci.scope(f"forward {number}"):
            ci.mark("number", number)
    return len(made)


def enter(name: str) -> str:
    return str(open_scopes.enter_context(ci.scope(name)).id)


def leave() -> None:
    open_scopes.close()


def limit_files(size: int) -> None:
    """The largest file that may be written, in bytes; -1: any."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))


def flusher() -> threading.Thread | None:
    return next((t for t in threading.enumerate() if t.name == "cirron-otel-flush"), None)


def strike() -> None:
    """Raise SystemExit in the flush thread, wherever it is now."""
    thread = flusher()
    if thread is not None:
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))


def kill_flush() -> int:
    """Kill the flush thread, and wait until it has run again."""
    before = ci.health()
    strike()
    begun = struck = time.monotonic()
    while time.monotonic() < begun + 180:
        now = ci.health()
        is_back = now["flush"]["count"] > before["flush"]["count"] and now["flush"]["is_alive"]
        if now["flush_restart_count"] > before["flush_restart_count"] and is_back:
            return int(now["flush_restart_count"])
        is_unharmed = now["flush_restart_count"] == before["flush_restart_count"]
        if is_unharmed and time.monotonic() > struck + 20:
            strike()  # the first one fell into a destructor, which ignores it
            struck = time.monotonic()
        time.sleep(0.01)
    raise TimeoutError("the flush thread did not come back")


def kill_flush_at_work(pause: float) -> int:
    """Record, strike after a pause, in seconds, and record on until the thread is back."""
    before = ci.health()["flush_restart_count"]
    due = time.monotonic() + pause
    while ci.health()["flush_restart_count"] == before:
        steps(5)
        time.sleep(0.001)
        if time.monotonic() > due:
            strike()
            due += 5.0  # where it fell into a destructor, which ignores it
    return len(made)


def end_flush() -> None:
    """Let the flush thread really end: it dies where it would note its death."""
    real = Pipeline._died
    thread = flusher()
    assert thread is not None

    def dying(pipeline: Any, why: str) -> None:
        Pipeline._died = real
        real(pipeline, why)
        raise SystemExit

    Pipeline._died = dying
    strike()
    thread.join(180)
    assert flusher() is None


def steps_in_threads(n: int, count: int) -> int:
    """Record steps in several threads; how many flush threads there are then."""
    workers = [threading.Thread(target=ACTS["steps"], args=(n,)) for _ in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(thread.name == "cirron-otel-flush" for thread in threading.enumerate())


def pid() -> int:
    return os.getpid()


def modules() -> list[str]:
    return list(sys.modules)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


ACTS = {
    act.__name__: act
    for act in (
        profile, steps, enter, leave, limit_files, kill_flush, kill_flush_at_work, pid,
        end_flush, steps_in_threads, peak_bytes, modules, ci.flush, ci.shutdown, ci.health,
    )
}  # fmt: skip

for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps(ACTS[asked.pop("do")](**asked)), flush=True)
