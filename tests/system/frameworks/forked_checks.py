"""Runs checks, each in a process of its own, forked after the frameworks were imported.

A module of checks has functions that take a directory and return the faults that they found. Its
`main` calls `run_all`; a test reads the printed line with `faults_of`.
"""

from __future__ import annotations

import ast
import json
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.kit.forked_scripts import ForkedScripts

from . import use_one_thread
from .checking import import_session, module_run

Check = Callable[[Path], list[str]]


def names_of(module: str, decorator: str = "check") -> list[str]:
    """Return the names of the checks of a module of this folder, without importing it."""
    source = Path(__file__).with_name(f"{module}.py").read_text()
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(each, ast.Name) and each.id == decorator for each in node.decorator_list)
    ]


def run_all(checks: Sequence[Check], directory: Path) -> None:
    """Run every check in a process of its own, and print the faults by the checks' names."""
    import_session()
    faults = {}
    for each in checks:
        place = directory / each.__name__
        place.mkdir()
        pid = os.fork()
        if pid == 0:
            os.chdir(place)
            use_one_thread()
            try:
                found = each(place / "trace")
            except BaseException:
                found = [traceback.format_exc()]
            (place / "faults.json").write_text(json.dumps(found))
            os._exit(0)
        os.waitpid(pid, 0)
        outcome = place / "faults.json"
        faults[each.__name__] = json.loads(outcome.read_text()) if outcome.exists() else ["died"]
    print("\n" + json.dumps(faults))


def faults_of(
    module: str, directory: Path, *arguments: str, python: Path | ForkedScripts
) -> dict[str, list[str]]:
    """Run a module of checks in a process, and return the faults by the checks' names."""
    variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    name = f"tests.system.frameworks.{module}"
    done = module_run(python, name, directory, *arguments, **variables)
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def difference(wanted: Any, found: Any, text: str) -> list[str]:
    """Return a fault if two values differ."""
    return [] if wanted == found else [f"{text}: {found}, not {wanted}"]
