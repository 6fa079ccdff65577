"""Counts the bytecode instructions of the hooks that a training step executes.

    python -m tests.system.frameworks.step_bytecode PROGRAM IMPORT...

PROGRAM is one of `tests.perf.bench.trainer_worker.PROGRAMS`. The number is printed. It is the same
in every run and on every machine, unlike a time. The work of functions in C is not part of it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import cirron_otel as ci
from tests.perf.bench import trainer_worker

FIRST, LAST, STEPS = 20, 60, 70
"""The steps after which the count begins and ends, and the number of all steps."""
_HOOKS = f"{Path(ci.__file__).parent}/"


def count(program: str) -> float:
    """Run a traced program; return the instructions of this package per step."""
    executed = steps = 0

    def local(_: FrameType, event: str, __: Any) -> Callable[..., Any]:
        nonlocal executed
        executed += event == "opcode"
        return local

    def begin(frame: FrameType, _: str, __: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(_HOOKS):
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
    """Import the modules, so that the hooks are complete before the first step; then count."""
    program, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    torch.set_num_threads(1)
    print(f"{program}: {count(program)}")


if __name__ == "__main__":
    main()
