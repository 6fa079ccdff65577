"""A program that never imports a framework has no hooks, whatever `frameworks` contains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.sdk.instrumentation.frameworks import FRAMEWORKS
from tests.kit.sessions.processes import ROOT, environment

NAMES = ", ".join([*FRAMEWORKS, "auto", "none"])
PROGRAM = """
import importlib.util, json, sys
import cirron_otel as ci

finders = list(sys.meta_path)
profiler = ci.profile(output_dir=sys.argv[1], join="none", frameworks=json.loads(sys.argv[2]))
inside = len(sys.meta_path) - len(finders)
there = importlib.util.find_spec("torch") is not None
with ci.scope("epoch"):
    for _ in ci.batches([1, 2]):
        pass
hooks = profiler.installed_hooks
ci.shutdown()
names = [name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy")]
ours = [name for name in sys.modules if name.startswith("cirron_otel.sdk.instrumentation.torch")]
print(json.dumps({
    "there": there, "inside": inside, "hooks": hooks, "names": names, "ours": ours,
    "same": sys.meta_path == finders, "errors": profiler.health()["last_errors"],
}))
"""


def run(directory: Path, frameworks: Any) -> Any:
    command = [sys.executable, "-c", PROGRAM, str(directory), json.dumps(frameworks)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("frameworks", "waits", "problem"),
    [
        ("auto", 1, ""),
        (None, 1, ""),
        ("none", 0, ""),
        ([], 0, ""),
        (["auto", "torhc"], 1, f"'torhc' is not hooked: expected {NAMES}"),
        ("jax", 1, f"'jax' is not hooked: expected {NAMES}"),
    ],
)
def test_nothing_is_imported(tmp_path: Path, frameworks: Any, waits: int, problem: str) -> None:
    found = run(tmp_path, frameworks)
    assert found.pop("there") in (True, False)
    assert found == {
        "inside": waits, "hooks": [], "names": [], "ours": [], "same": True,
        "errors": {"frameworks": problem} if problem else {},
    }  # fmt: skip
