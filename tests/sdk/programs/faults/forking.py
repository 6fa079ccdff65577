"""A process whose children record. Arguments: directory, how children are made.

It prints the pids, with that of a child that recorded nothing, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import time
from typing import Any

import cirron_otel as ci

CHILDREN, STEPS = 3, 40


def steps(first: int, n: int) -> None:
    for number in range(first, first + n):
        with ci.scope("step", index=number), ci.scope("forward"):
            ci.mark("number", number)


def spawned(directory: str, how: str) -> None:
    """What a child does; one that is not forked opens its session itself."""
    if how != "fork":
        ci.profile(frameworks=[], output_dir=directory, flush_interval=0.01, link=LINK)
    steps(1000, STEPS)


LINK = os.environ.get("PARENT")


def forked(number: int) -> None:
    steps(1000, STEPS)
    if ci.health()["scope_drop_count"]:
        raise AssertionError("what the parent dropped is not the child's")
    if number == 0:
        sys.exit(0)  # by way of atexit
    ci.shutdown()
    os._exit(0)


def fork(work: Any, *arguments: Any) -> int:
    pid = os.fork()
    if not pid:
        code = 9
        try:
            work(*arguments)
            code = 0
        except SystemExit:
            raise
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            if sys.exc_info()[0] is not SystemExit:
                os._exit(code)
    return pid


def ended(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"a child left with status {status}")


def main() -> None:
    directory, how = sys.argv[1:]
    ci.profile(frameworks=[], output_dir=directory, flush_interval=0.01)
    os.environ["PARENT"] = ci.inject()["traceparent"]
    pids, idle = [], 0
    with contextlib.ExitStack() as deep:
        for _ in range(66):
            deep.enter_context(ci.scope("deep"))
    assert ci.health()["scope_drop_count"] == 2
    with ci.scope("epoch"):
        steps(0, STEPS)
        time.sleep(0.03)
        steps(STEPS, STEPS)
        if how == "os.fork":
            pids = [fork(forked, number) for number in range(CHILDREN)]
            idle = fork(sum, [])
            steps(2 * STEPS, STEPS)
            for pid in [*pids, idle]:
                ended(pid)
        else:
            context: Any = multiprocessing.get_context(how)
            children = [
                context.Process(target=spawned, args=(directory, how)) for _ in range(CHILDREN)
            ]
            for child in children:
                child.start()
            bored = context.Process(target=sum, args=([],))
            bored.start()
            steps(2 * STEPS, STEPS)
            for child in [*children, bored]:
                child.join()
                if child.exitcode:
                    raise RuntimeError(f"a child left with {child.exitcode}")
            pids, idle = [child.pid for child in children], bored.pid
    ci.shutdown()
    print(json.dumps({"pid": os.getpid(), "children": pids, "idle": idle}))


if __name__ == "__main__":
    main()
