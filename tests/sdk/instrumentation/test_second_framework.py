"""A framework that the package has never seen is hooked without a change of the package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cirron_otel.sdk.instrumentation.frameworks import FRAMEWORKS
from tests.kit.sessions.processes import ROOT, environment
from tests.kit.sessions.spool_trees import read_spool

from .second_framework import write


def run(directory: Path, frameworks: Any) -> tuple[Any, list[str]]:
    """Return what the program observed, and its session's scopes, indented by depth."""
    write(directory)
    command = [
        sys.executable, "-m", "tests.sdk.instrumentation.second_framework",
        str(directory / "traces"), json.dumps(frameworks),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(PYTHONPATH=f"{ROOT}:{directory}"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spool = read_spool(directory / "traces")
    names: list[str] = []

    def add(node: Any, depth: int) -> None:
        names.append(" " * depth + node.name)
        for child in node.children:
            add(child, depth + 1)

    add(spool.sessions[0], 0)
    return json.loads(done.stdout), names


SCOPES = ["cirron.session", " epoch", "  step", "  step", "  step", " save"]


def test_it_is_hooked_when_it_is_imported_and_faulty_hooks_of_it_harm_nothing(
    tmp_path: Path,
) -> None:
    found, scopes = run(tmp_path, "auto")
    assert found["before"] == [False]
    assert (found["result"], found["saved"], found["child"]) == (12, "4", 0)
    assert found["installed"] == ["tiny", "faulty"]
    assert found["health"]["tiny"] == {"flushes": True, "forks": 0}
    assert found["errors"] == {"hooks": "ValueError: no such method"}
    assert found["after"] == ["fit"]
    assert scopes == SCOPES


def test_a_name_in_the_table_imports_it_and_another_name_is_reported(tmp_path: Path) -> None:
    found, scopes = run(tmp_path, ["tiny", "jax"])
    assert found["before"] == ["tiny", True]
    expected = ", ".join([*FRAMEWORKS, "tiny, faulty, auto, none"])
    assert found["errors"] == {"frameworks": f"'jax' is not hooked: expected {expected}"}
    assert scopes == SCOPES
