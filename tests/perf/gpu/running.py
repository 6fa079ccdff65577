"""Runs a check in a separate process, and returns its result."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
WHERE = {
    "truth": "timing", "no_wait": "timing", "cost": "timing", "capture": "programs",
    "compiled": "programs", "recompute": "programs", "skipped": "programs", "memory": "memory",
    "snapshot": "snapshots", "values": "snapshots", "epoch": "snapshots", "identical": "programs",
    "place": "memory", "phases": "memory", "samples": "memory",
    "loss_marks": "trainers", "trainer": "trainers", "out_of_memory": "out_of_memory",
    "findings": "findings", "digest_values": "digests", "digest_cost": "digests",
    "digest_streams": "digests", "digest_steps": "digests", "digest_files": "digests",
}  # fmt: skip
"""The checks, by the modules that hold them."""
TIMEOUT_S = 120
TIMEOUTS = {"compiled": 200}
"""Of those that take longer."""
PASSED, FAILED, NOT_SHOWN = "passed", "failed", "not shown"
MARK = "tests.perf.gpu: "
"""Before the one line of a check's process that is read."""
_BEFORE_S = 5
"""So long before its end, a check that hangs says where."""
_TAIL = 4000


def timeout_of(name: str) -> float:
    """Seconds that a check may take."""
    return TIMEOUTS.get(name, TIMEOUT_S)


def result(status: str, said: str = "") -> dict[str, Any]:
    """What a check came to: `lacks` names what the machine does not have, where that is why."""
    return {"status": status, "said": said, "lacks": "", "traceback": "", "figures": {}}


def run_here(name: str, device: str) -> None:
    """Run a check, and print what it came to as one line of JSON."""
    faulthandler.dump_traceback_later(timeout_of(name) - _BEFORE_S)
    try:
        told = ran(name, device)
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(MARK + json.dumps(told), flush=True)


def ran(name: str, device: str) -> dict[str, Any]:
    """Run a check in this process; what it came to."""
    import torch

    from .machine import Machine, Unavailable

    if device == "cpu":
        torch.set_num_threads(1)
    machine = Machine(device)
    try:
        module = importlib.import_module(f"tests.perf.gpu.{WHERE[name]}")
        check: Callable[[Machine], None] = getattr(module, name)
        check(machine)
        told = result(PASSED)
    except Unavailable as error:
        told = result(NOT_SHOWN, str(error)) | {"lacks": error.lacks}
        told["traceback"] = traceback.format_exc()
    except Exception as error:
        told = result(FAILED, f"{type(error).__name__}: {error}")
        told["traceback"] = traceback.format_exc()
    return {**told, "figures": machine.figures}


def run_apart(name: str, *, is_rehearsal: bool) -> dict[str, Any]:
    """Run a check in a process of its own."""
    command = [sys.executable, "-m", "tests.perf.gpu", "--here", name]
    if is_rehearsal:
        command.append("--rehearse")
    return called(command, timeout_of(name))


def called(command: list[str], timeout: float) -> dict[str, Any]:
    """What a check's process, and what it wrote, came to; nothing that it started is left."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # What deterministic algorithms ask for (torch.use_deterministic_algorithms).
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    # Files, for what the check starts may hold a pipe open for longer than it lives.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=out, stderr=errors, start_new_session=True
        )
        status: int | None = None
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = [_read(file) for file in (out, errors)]
    told = _judged(texts[0], status, timeout)
    told["stderr"] = texts[1][-_TAIL:]
    return told


def _read(file: Any) -> str:
    file.seek(0)
    text: str = file.read().decode(errors="replace")
    return text


def _judged(written: str, status: int | None, timeout: float) -> dict[str, Any]:
    """What the marked line says, unless the process did not end as it should; None: it did not."""
    told = result(FAILED, "it said nothing")
    for line in written.splitlines():
        if line.startswith(MARK):
            told = json.loads(line.removeprefix(MARK))
    if status is None:
        ended = f"it did not end within {timeout:g} s"
    elif status:
        ended = f"exit status {status}"
    else:
        return told
    said = f"{ended}; before, it said: {told['status']}: {told['said']}"
    return {**told, "status": FAILED, "said": said}
