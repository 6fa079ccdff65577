"""Loops traced in separate processes, each in its tool's environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kit.sessions.processes import ROOT, environment

from .loops import Loop
from .tools import Outcome


class LoopError(Exception):
    """A rank of a loop did not come to its end; the message ends with what it printed."""


class Worker:
    """A process that runs loops (`worker` in this folder), started when first needed."""

    def __init__(self, tool: str, python: Path | None = None, **variables: str) -> None:
        self.tool = tool
        self.command = [
            str(python or sys.executable),
            "-m",
            "tests.sdk.instrumentation.torch.worker",
            tool,
        ]
        self.variables = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **variables}
        self._process: subprocess.Popen[str] | None = None

    def run(self, loop: Loop, directory: Path) -> list[Outcome]:
        """Run a loop; what it came to in each rank. Raises LoopError."""
        directory.mkdir(parents=True, exist_ok=True)
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"loop": loop.name, "directory": str(directory.absolute())}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        statuses = json.loads(process.stdout.readline() or "[]")
        outcomes = []
        for rank in range(loop.ranks):
            found = directory / f"outcome-{rank}.json"
            if statuses[rank : rank + 1] != [0] or not found.exists():
                said = (directory / f"output-{rank}.txt").read_text()[-2000:]
                raise LoopError(f"{self.tool}: rank {rank} of {loop.name} ended badly\n{said}")
            outcomes.append(Outcome(**json.loads(found.read_text())))
        return outcomes

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=environment(**self.variables),
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
