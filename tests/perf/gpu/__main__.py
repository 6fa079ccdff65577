"""Runs the checks, each in a separate process, and reports the results; see `tests.perf.gpu`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

from .running import (
    FAILED,
    NOT_SHOWN,
    PASSED,
    WHERE,
    run_apart,
    run_here,
)

CHECKS = tuple(WHERE)
OK, SOME_FAILED, USAGE, NO_GPU, NO_IMPORT, SOME_NOT_SHOWN = range(6)
NEEDED = (
    "torch", "msgspec", "google.protobuf", "opentelemetry.sdk.trace", "cirron_otel.sdk.session.api",
)  # fmt: skip


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
    missing = [problem for name in NEEDED if (problem := _problem(name))]
    if missing:
        print("\n".join([*missing, "install what cirron-otel needs here"]))
        return NO_IMPORT
    names = given.checks or CHECKS
    if given.here:
        for name in names:
            run_here(name, "cpu" if given.rehearse else "cuda")
        return OK
    if not given.rehearse and not _has_gpu():
        print("no GPU: nothing measured")
        return NO_GPU
    return _run(names, given)


def _run(names: tuple[str, ...], given: argparse.Namespace) -> int:
    """Run the checks; what is known so far is in the file after each of them."""
    found: dict[str, dict[str, Any]] = {}
    report = {"machine": _machine(), "is_rehearsal": given.rehearse, "checks": found}
    for name in names:
        found[name] = run_apart(name, is_rehearsal=given.rehearse)
        print(_line(name, found[name]), flush=True)
        if given.json:
            Path(given.json).write_text(json.dumps(report, indent=1) + "\n")
    print(_summary(found))
    if any(each["status"] == FAILED for each in found.values()):
        return SOME_FAILED
    is_open = any(_is_open(each) for each in found.values())
    return SOME_NOT_SHOWN if is_open else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.gpu", description=__doc__)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="all of them, if none is named")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--list", action="store_true", help="name the checks")
    parser.add_argument("--rehearse", action="store_true", help="run the programs on the CPU")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser


def _problem(name: str) -> str | None:
    """Why a module cannot be imported; a bare namespace package of its name is not enough."""
    try:
        importlib.import_module(name)
    except Exception as error:
        return f"{name} cannot be imported: {type(error).__name__}: {error}"
    return None


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


def _is_open(result: dict[str, Any]) -> bool:
    """Whether it was not shown although the machine has all that it takes."""
    return bool(result["status"] == NOT_SHOWN and not result["lacks"])


def _line(name: str, result: dict[str, Any]) -> str:
    said = f": {result['said']}" if result["said"] else ""
    figures = f"  {json.dumps(result['figures'])}" if result["figures"] else ""
    lines = [f"{result['status']:<10}{name}{said}{figures}"]
    if result["status"] != PASSED:
        for text in (result["traceback"], result.get("stderr", "")):
            lines += [f"    {line}" for line in text.splitlines()]
    return "\n".join(lines)


def _summary(found: dict[str, dict[str, Any]]) -> str:
    """How many of each status, and why some were not shown."""
    statuses = [each["status"] for each in found.values()]
    counts = ", ".join(f"{statuses.count(one)} {one}" for one in (PASSED, FAILED, NOT_SHOWN))
    why = [
        f"{name}: " + (f"the machine lacks {each['lacks']}" if each["lacks"] else each["said"])
        for name, each in found.items()
        if each["status"] == NOT_SHOWN
    ]
    return f"{counts} ({'; '.join(why)})" if why else counts


if __name__ == "__main__":
    # Ended from outside, it still ends the check that is running: that has a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
