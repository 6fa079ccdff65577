"""Records scopes and marks in several threads, and ends in one of many ways.

`program.py DIRECTORY SPEC`, SPEC as JSON (`plan.Spec`). Each thread counts in shared memory, so
that the parent can compare the numbers after any kind of end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cirron_otel as ci
from cirron_otel.sdk.flush import assembly, drain, leaving, pipeline, remainder
from cirron_otel.sdk.flush.flush_builder import FlushBuilder
from cirron_otel.sdk.session.handle import active
from cirron_otel.sdk.tracing import buffers

DIRECTORY, SPEC = Path(sys.argv[1]), json.loads(sys.argv[2])
SLOTS = 64
OPENED, MARKED, FLUSHED, SESSIONS = 0, 16, 32, 40
"""The first slots of the counters: two for each thread, and two single ones."""
with (DIRECTORY / "counters").open("w+b") as file:
    file.truncate(8 * SLOTS)
    counters = mmap.mmap(file.fileno(), 8 * SLOTS)


def count(slot: int, number: int) -> None:
    struct.pack_into("q", counters, 8 * slot, number)


def counted(slot: int) -> int:
    return int(struct.unpack_from("q", counters, 8 * slot)[0])


def note(**facts: Any) -> None:
    """Append facts for the parent; the file is complete whenever the process ends."""
    with (DIRECTORY / "facts").open("a") as facts_file:
        facts_file.write(json.dumps(facts) + "\n")


class Assembling:
    """A fault point: shows whether a batch is being assembled."""

    is_on = False

    @classmethod
    def install(cls) -> None:
        real = FlushBuilder._assemble

        def assemble(builder: FlushBuilder, *arguments: Any) -> Any:
            cls.is_on = True
            try:
                return real(builder, *arguments)
            finally:
                cls.is_on = False

        FlushBuilder._assemble = assemble  # type: ignore[method-assign]


def record(thread: int, scopes: int, tracer: Any = None) -> None:
    """Open scopes `t<thread>` with numbers from 0, every third inside another, and mark them."""
    opened, marked = counted(OPENED + thread), counted(MARKED + thread)
    name = f"t{thread}"
    for _ in range(scopes):
        count(OPENED + thread, opened + 1)
        with ci.scope(name, index=opened):
            opened += 1
            if SPEC["marks"]:
                count(MARKED + thread, marked + 1)
                ci.mark(name, marked)
                marked += 1
            if tracer is not None and opened % 50 == 0:
                with tracer.start_as_current_span("other"):
                    pass
            if opened % 3 == 0:
                count(OPENED + thread, opened + 1)
                with ci.scope(name, index=opened):
                    opened += 1


def shrink(scale: int) -> dict[str, int]:
    """Divide the sizes of batches, and the time to save; return the options for the buffers."""
    leaving.SAVE_S /= scale  # type: ignore[misc]
    sizes = {
        "MAX_SPANS": (assembly, remainder), "MAX_MARKS": (assembly,),
        "PORTION": (drain, pipeline), "EARLY_FLUSH": (buffers,),
    }  # fmt: skip
    for name, modules in sizes.items():
        size = getattr(modules[0], name) // scale
        for module in modules:
            setattr(module, name, size)
    return {"scope_capacity": 262_144 // scale, "mark_capacity": 65_536 // scale}


BUFFERS = shrink(SPEC["scale"])


def tensors() -> None:
    """Train a little, so that there are snapshots and digests."""
    if not (SPEC["snapshots"] or SPEC["digests"]):
        return
    import torch

    model = ci.watch(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in ci.epochs(range(2)):
        for batch in ci.batches([torch.ones(4, 8)] * 3):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()


def open_session() -> None:
    options: dict[str, Any] = dict(BUFFERS)
    if SPEC["limit"] is not None:
        options["exit_timeout"] = SPEC["limit"]
    if SPEC["snapshots"]:
        options["snapshots"] = "full"
    if SPEC["digests"]:
        options["digest"] = "step"
    frameworks = ["torch"] if SPEC["snapshots"] or SPEC["digests"] else []
    ci.profile(
        output_dir=str(DIRECTORY), frameworks=frameworks, flush_interval=SPEC["interval"],
        sample_interval=None, overhead_marks=SPEC["overhead"], quiet=True, **options,
    )  # fmt: skip
    count(SESSIONS, counted(SESSIONS) + 1)


def work() -> None:
    tracer = None
    if SPEC["foreign"] and active.profiler is not None and active.profiler.provider is not None:
        tracer = active.profiler.provider.get_tracer("other")
    threads = [
        threading.Thread(target=record, args=(number, SPEC["scopes"], tracer), daemon=True)
        for number in range(SPEC["threads"])
    ]
    for thread in threads:
        thread.start()
    if SPEC["end"] in ("sigkill", "os._exit"):
        for _ in range(2):
            before = sum(counted(OPENED + number) for number in range(SPEC["threads"]))
            if ci.flush(60):
                count(FLUSHED, before)
    if SPEC["joins"]:
        for thread in threads:
            thread.join()
    tensors()


def shut_down() -> None:
    if SPEC["shutdown"] is not None:
        done = ci.shutdown(SPEC["shutdown"])
        note(done=done, assembling=Assembling.is_on)


def end() -> None:
    way = SPEC["end"]
    note(opened=[counted(OPENED + number) for number in range(SPEC["threads"])])
    if way == "two sessions":
        shut_down()
        open_session()
        work()
    if way == "fork":
        child = os.fork()
        if child == 0:
            with ci.scope("child"):
                pass
            note(child=os.getpid())
            ci.shutdown(30)
            os._exit(0)
        os.waitpid(child, 0)
    if way == "sys.exit in a thread":
        thread = threading.Thread(target=sys.exit, args=(3,))
        thread.start()
        thread.join()
    note(ends=time.time())
    if way in ("sigterm", "sigint", "sigkill"):
        os.kill(os.getpid(), getattr(signal, way.upper()))
        time.sleep(600)
    if way == "os._exit":
        os._exit(0)
    shut_down()
    note(ends=time.time())


def main() -> None:
    # Registered first, so it runs after the handlers of the SDK.
    atexit.register(lambda: note(left=time.time()))
    Assembling.install()
    open_session()
    work()
    with contextlib.suppress(KeyboardInterrupt):
        end()


main()
