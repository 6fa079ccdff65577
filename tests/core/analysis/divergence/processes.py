"""Processes that run the programs of this folder."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.sessions.processes import ROOT, environment

_PROGRAMS = "tests.core.analysis.divergence.programs"


def start(name: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"{_PROGRAMS}.{name}", *map(str, arguments)], cwd=ROOT,
        env=environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", **variables), text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    try:
        _, problems = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, problems
    assert "Traceback" not in problems
