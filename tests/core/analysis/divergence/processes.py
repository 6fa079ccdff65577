"""Processes that run the programs of this folder."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.sessions.processes import ROOT, environment

_PROGRAMS = "tests.core.analysis.divergence.programs"


def run(name: str, *arguments: object) -> None:
    """Run a program, which must succeed without a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", f"{_PROGRAMS}.{name}", *map(str, arguments)], cwd=ROOT,
        env=environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""), text=True,
        stderr=subprocess.PIPE, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
