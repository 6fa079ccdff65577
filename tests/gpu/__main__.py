"""Runs the checks, each in a process of its own, and tells what they came to; see `tests.gpu`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHECKS = (
    "truth", "no_wait", "cost", "capture", "compiled", "recompute", "skipped", "memory",
    "snapshot", "identical",
)  # fmt: skip
TIMEOUT_S = 300
PASSED, FAILED, NOT_SHOWN = "passed", "failed", "not shown"
OK, SOME_FAILED, USAGE, NO_GPU, NO_IMPORT = 0, 1, 2, 3, 4
_MARK = "tests.gpu: "
"""Before the one line of a check's process that is read."""


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says; the exit status."""
    given = _parser().parse_args(arguments)
    unknown = set(given.checks) - set(CHECKS)
    if unknown:
        print(f"no such check: {', '.join(sorted(unknown))}; see --list", file=sys.stderr)
        return USAGE
    if given.list:
        print("\n".join(CHECKS))
        return OK
    missing = [name for name in ("torch", "msgspec", "opentelemetry") if not _is_there(name)]
    if missing:
        print(f"{', '.join(missing)} cannot be imported: install what cirron-otel needs here")
        return NO_IMPORT
    if given.here:
        for name in given.checks or CHECKS:
            _run_here(name, "cpu" if given.rehearse else "cuda")
        return OK
    if not given.rehearse and not _has_gpu():
        print("no GPU: nothing measured")
        return NO_GPU
    found = {}
    for name in given.checks or CHECKS:
        found[name] = _run_apart(name, is_rehearsal=given.rehearse)
        print(_line(name, found[name]), flush=True)
    report = {"machine": _machine(), "is_rehearsal": given.rehearse, "checks": found}
    if given.json:
        Path(given.json).write_text(json.dumps(report, indent=1) + "\n")
    statuses = [each["status"] for each in found.values()]
    print(f"{statuses.count(PASSED)} passed, {statuses.count(FAILED)} failed,"
          f" {statuses.count(NOT_SHOWN)} not shown")  # fmt: skip
    return SOME_FAILED if FAILED in statuses else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="all of them, if none is named")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--list", action="store_true", help="name the checks")
    parser.add_argument("--rehearse", action="store_true", help="run the programs on the CPU")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _machine() -> dict[str, Any]:
    import torch

    has_gpu = _has_gpu()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(0) if has_gpu else "cpu",
        "cores": os.cpu_count(),
    }


def _run_apart(name: str, *, is_rehearsal: bool) -> dict[str, Any]:
    """Run a check in a process of its own."""
    command = [sys.executable, "-m", "tests.gpu", "--here", name]
    if is_rehearsal:
        command.append("--rehearse")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # What deterministic algorithms ask for (torch.use_deterministic_algorithms).
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _result(FAILED, f"it did not end within {TIMEOUT_S} s")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            told: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return told
    return _result(FAILED, f"exit status {done.returncode}: {done.stderr[-2000:]}")


def _run_here(name: str, device: str) -> None:
    """Run a check, and print what it came to as one line of JSON."""
    import torch

    from . import programs, timing
    from .machine import Machine

    if device == "cpu":
        torch.set_num_threads(1)
    machine = Machine(device)
    check: Callable[[Machine], None] = getattr(timing, name, None) or getattr(programs, name)
    try:
        check(machine)
        result = _result(PASSED)
    except programs.Unavailable as error:
        result = _result(NOT_SHOWN, str(error))
    except Exception as error:
        result = _result(FAILED, f"{type(error).__name__}: {error}")
    print(_MARK + json.dumps({**result, "figures": machine.figures}), flush=True)


def _result(status: str, said: str = "") -> dict[str, Any]:
    return {"status": status, "said": said, "figures": {}}


def _line(name: str, result: dict[str, Any]) -> str:
    said = f": {result['said']}" if result["said"] else ""
    figures = f"  {json.dumps(result['figures'])}" if result["figures"] else ""
    return f"{result['status']:<10}{name}{said}{figures}"


if __name__ == "__main__":
    sys.exit(main())
