"""Run the programs of a framework in its environment, untraced and traced, and compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.kit.sessions.processes import ROOT, environment
from tests.kit.sessions.spool_trees import OVERHEAD, read_spool
from tests.sdk.instrumentation.torch import trees

from . import Program, programs_of


class ProgramError(Exception):
    """A rank of a program did not end; the message is the end of its output."""


class Server:
    """A process that runs programs (`worker` in this folder), started when first needed."""

    def __init__(
        self,
        modules: Sequence[str],
        python: Path | None = None,
        paths: Sequence[Path] = (),
    ) -> None:
        """`modules` are imported once, before the programs run; `python` is the interpreter.

        `paths` precede the interpreter's own packages.
        """
        self._paths = paths
        self._command = [
            str(python or sys.executable),
            "-m",
            "tests.system.frameworks.worker",
            *modules,
        ]
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, str]) -> list[int]:
        """Run a program, and return the exit statuses of its ranks; none if the process is dead."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        statuses: list[int] = json.loads(process.stdout.readline() or "[]")
        return statuses

    def _start(self) -> subprocess.Popen[str]:
        variables = {
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *self._paths))),
        }
        return subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            try:
                self._process.communicate(timeout=60)
            finally:
                self._process.kill()
                self._process.wait()


@dataclass(frozen=True)
class Worker:
    """The programs of a framework, run by a server with one tool or none."""

    server: Server
    framework: str
    tool: str

    def run(self, program: Program, directory: Path) -> list[dict[str, Any]]:
        """Run a program; return the outcome of each rank. Raises ProgramError."""
        directory.mkdir(parents=True, exist_ok=True)
        request = {"framework": self.framework, "tool": self.tool}
        request |= {"program": program.name, "directory": str(directory.absolute())}
        statuses = self.server.ask(request)
        outcomes = []
        for rank in range(program.ranks):
            found = directory / f"outcome-{rank}.json"
            if statuses[rank : rank + 1] != [0] or not found.exists():
                output = (directory / f"output-{rank}.txt").read_text()[-3000:]
                raise ProgramError(f"rank {rank} of {program.name} failed\n{output}")
            outcomes.append(json.loads(found.read_text()))
        return outcomes


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
    for mark in sorted(spool.marks, key=lambda each: int(each["ts_ns"])):
        if mark["name"] != OVERHEAD:
            value = mark["value"]
            marks.setdefault(ranks.get(mark["span_id"], 0), []).append((mark["name"], value))
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
