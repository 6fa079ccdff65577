"""A process that leaves in the way that its arguments say: directory, way.

It says "ready" when its scopes are open, and what else it has to say, on its standard output.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

directory, way = sys.argv[1:]
opened: list[Any] = []


def handler(number: int, _frame: Any) -> None:
    print("handled", signal.Signals(number).name, flush=True)
    if way.startswith("exits"):
        sys.exit(7)
    if way.startswith("leaves hard"):
        os._exit(8)


def main() -> None:
    if not way.startswith(("default", "late", "ignored")):
        signal.signal(signal.SIGTERM, handler)
        signal.signal(signal.SIGINT, handler)
    if way.startswith("ignored"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if way != "without us":
        record()
    ways = {
        "sys.exit": lambda: sys.exit(5), "raise": fail, "end": lambda: None,
        "default, busy": work, "default, in its shutdown": shut_down,
    }  # fmt: skip
    ways.get(way, wait)()


def record() -> None:
    import cirron_otel as ci

    ci.profile(frameworks=[], output_dir=directory, flush_interval=3600)
    if way.startswith("late"):
        signal.signal(signal.SIGTERM, handler)
    with ci.scope("last"):
        ci.mark("number", 0)
    opened.append(ci.scope("open"))
    opened[0].__enter__()
    ci.mark("number", 1)


def fail() -> None:
    raise RuntimeError("a failure of the application")


def work() -> None:
    """Be in the midst of anything: of a scope, a mark, a flush, a question."""
    import cirron_otel as ci

    print("ready", flush=True)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        with ci.scope("busy"):
            ci.mark("busy", 1)
        ci.flush()
        ci.health()


def shut_down() -> None:
    """Be in the midst of closing the session: the first batch is being written."""
    import cirron_otel as ci
    from cirron_otel.core.spool.writer import SpoolWriter

    real = SpoolWriter.write

    def write(*arguments: Any, **options: Any) -> Any:
        print("ready", flush=True)
        time.sleep(0.3)
        return real(*arguments, **options)

    SpoolWriter.write = write
    ci.shutdown()
    wait()


def wait() -> None:
    print("ready", flush=True)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        time.sleep(0.01)
        if os.path.exists(f"{directory}/go on"):  # noqa: PTH110 - a handler may interrupt it anywhere
            return


main()
