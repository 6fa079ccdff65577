"""Threads and tasks that record as fast as they can. Arguments: directory, options as JSON.

Each record's name says whose it is and what it hangs on: `t3/17/a` lies in `t3/17`, that in `t3`.
It prints how many scopes and marks it made, what `health()` says, and its peak of memory.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
from typing import Any

import cirron_otel as ci

directory, options = sys.argv[1], json.loads(sys.argv[2])
THREADS, TASKS = options.pop("threads"), options.pop("tasks")
ROUNDS, TASK_ROUNDS = options.pop("rounds"), 20
"""A round is two scopes with a mark each."""


def work(own: str) -> None:
    with ci.scope(own):
        for number in range(ROUNDS):
            name = f"{own}/{number}"
            with ci.scope(name):
                ci.mark(name, number)
                with ci.scope(f"{name}/a"):
                    ci.mark(f"{name}/a", 0.5)


async def task(own: str) -> None:
    async with ci.scope(own):
        for number in range(TASK_ROUNDS):
            name = f"{own}/{number}"
            async with ci.scope(name):
                await asyncio.sleep(0)
                ci.mark(name, number)
                with ci.scope(f"{name}/a"):
                    await asyncio.sleep(0)
                    ci.mark(f"{name}/a", 0.5)


async def tasks() -> None:
    await asyncio.gather(*(task(f"a{number}") for number in range(TASKS)))


ci.profile(frameworks=[], output_dir=directory, overhead_marks=False, **options)
threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(THREADS)]
for thread in threads:
    thread.start()
asyncio.run(tasks())
for thread in threads:
    thread.join()
made = 2 * (THREADS * ROUNDS + TASKS * TASK_ROUNDS)
is_done = ci.shutdown(timeout=300)
said: dict[str, Any] = {
    "scopes": made + THREADS + TASKS + 1,
    "marks": made,
    "is_done": is_done,
    "health": ci.health(),
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}
print(json.dumps(said))
