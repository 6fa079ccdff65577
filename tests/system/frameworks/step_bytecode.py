"""Counts the bytecode instructions of the hooks that a training step executes.

    python -m tests.system.frameworks.step_bytecode PROGRAM=IMPORT,... ...

PROGRAM is one of `tests.perf.bench.trainer_worker.PROGRAMS`. Each runs in a fork of its own, which
has imported torch, and then imports the modules IMPORT. The numbers are printed. They are the same
in every run and on every machine, unlike a time. The work of functions in C is not part of it.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch  # noqa: F401 (shared by the forks)

import cirron_otel as ci
from tests.perf.bench import trainer_worker

from . import use_one_thread

FIRST, LAST, STEPS = 20, 60, 70
"""The steps after which the count begins and ends, and the number of all steps."""
_HOOKS = f"{Path(ci.__file__).parent}/"
_IN_PLACE = "_wrapped_call_impl"
"""The name of the hook that has the location of PyTorch's `Module.__call__`."""


def count(program: str) -> float:
    """Run a traced program; return the instructions of this package per step."""
    executed = steps = 0

    def local(_: FrameType, event: str, __: Any) -> Callable[..., Any]:
        nonlocal executed
        executed += event == "opcode"
        return local

    def begin(frame: FrameType, _: str, __: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if not code.co_filename.startswith(_HOOKS) and code.co_name != _IN_PLACE:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    def stamp() -> None:
        nonlocal steps
        steps += 1
        if steps == FIRST:
            sys.settrace(begin)
        elif steps == LAST:
            sys.settrace(None)

    ci.profile(exporters="none", flush_interval=3600.0)
    trainer_worker.PROGRAMS[program](STEPS, stamp)
    ci.shutdown()
    return executed / (LAST - FIRST)


def main() -> None:
    """Count the instructions of each program in a fork, and print them."""
    for each in sys.argv[1:]:
        program, _, modules = each.partition("=")
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            continue
        try:
            for module in filter(None, modules.split(",")):
                importlib.import_module(module)  # the hooks are complete before the first step
            use_one_thread()
            print(f"{program}: {count(program)}", flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


if __name__ == "__main__":
    main()
