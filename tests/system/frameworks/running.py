"""Run the programs of a framework in its environment, untraced and traced, and compare."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.program_server import ProgramServer
from tests.kit.sessions.processes import ROOT
from tests.kit.sessions.spool_trees import read_spool
from tests.sdk.instrumentation.torch import trees

from . import Program, programs_of


def server(
    modules: Sequence[str], python: Path | None = None, paths: Sequence[Path] = ()
) -> ProgramServer:
    """Return a process that runs programs (`worker` in this folder).

    `modules` are imported once, before the programs run; `python` is the interpreter. `paths`
    precede the interpreter's own packages.
    """
    variables = {
        "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths))),
    }  # fmt: skip
    command = [str(python or sys.executable), "-m", "tests.system.frameworks.worker", *modules]
    return ProgramServer(command, variables)


@dataclass(frozen=True)
class Worker:
    """The programs of a framework, run by a server with one tool or none."""

    server: ProgramServer
    framework: str
    tool: str

    def run(self, program: Program, directory: Path) -> list[dict[str, Any]]:
        """Run a program; return the outcome of each rank. Raises ProgramError."""
        return self.server.run(
            program.ranks, directory, framework=self.framework, tool=self.tool, program=program.name
        )


def parameters(framework: str) -> list[Any]:
    """Return the programs of a framework as parameters of a test."""
    return [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.slow else [])
        for each in programs_of(framework).values()
    ]


def check(program: Program, untraced: Worker, traced: Worker, directory: Path) -> None:
    """Run a program both ways; fail if its results, its tree or its marks are not as expected."""
    bare = untraced.run(program, directory / "untraced")
    outcomes = traced.run(program, directory / "traced")
    faults = []
    recorded = trees.read(directory / "traced")
    if list(recorded) != list(range(program.ranks)):
        faults.append(f"the ranks {list(recorded)} were recorded")
    marks = _marks(directory / "traced")
    for rank, (expected, outcome) in enumerate(zip(bare, outcomes, strict=True)):
        faults += [
            f"{key}: {outcome[key]!r}, untraced: {expected[key]!r}"
            for key in ("result", "random", "error")
            if outcome[key] != expected[key]
        ]
        if outcome["error"] != program.error:
            faults.append(f"the program raised {outcome['error']!r}")
        faults += outcome["complaints"]
        if rank in recorded:
            found = recorded[rank]
            faults.append(trees.difference(trees.parse(program.tree), found.root))
            faults += [f"the parent of a scope {name} is missing" for name in found.orphans]
            faults += trees.time_faults(found.root, needs_unattributed=False)
        faults += _log_faults(outcome["result"].get("logs", []), marks.get(rank, []))
    faults = [fault for fault in faults if fault]
    if faults:
        pytest.fail("\n".join([program.title, *faults]), pytrace=False)


def _marks(directory: Path) -> dict[int, list[tuple[str, Any]]]:
    """Return the marks of each rank, in order of their times."""
    spool = read_spool(directory)
    ranks = {span["id"]: span["rank"] or 0 for span in spool.spans}
    marks: dict[int, list[tuple[str, Any]]] = {}
    for mark in spool.program_marks:
        rank = ranks.get(mark["span_id"], 0)
        marks.setdefault(rank, []).append((mark["name"], mark["value"]))
    return marks


def _log_faults(logs: list[Any], marks: list[tuple[str, Any]]) -> list[str]:
    """Compare the values of a framework's own logs with the marks, name by name."""
    faults = []
    for name in dict.fromkeys(name for name, _ in logs):
        wanted = [value for each, value in logs if each == name]
        found = [value for each, value in marks if each == name]
        if wanted != found:
            faults.append(f"marks {name}: {found}, logged: {wanted}")
    return faults
