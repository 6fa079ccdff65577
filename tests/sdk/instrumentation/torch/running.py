"""Loops traced in separate processes, each in its tool's environment."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.program_server import ProgramServer

from .loops import Loop
from .tools import Outcome


class Worker(ProgramServer):
    """A process that runs loops (`worker` in this folder) with one tool."""

    def __init__(self, tool: str, python: Path | None = None, **variables: str) -> None:
        module = "tests.sdk.instrumentation.torch.worker"
        defaults = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        super().__init__([str(python or sys.executable), "-m", module, tool], defaults | variables)

    def run_loop(self, loop: Loop, directory: Path) -> list[Outcome]:
        """Run a loop; return the outcome of each rank. Raises ProgramError."""
        return [Outcome(**each) for each in self.run(loop.ranks, directory, loop=loop.name)]
