"""The server process (tests/kit/program_server.py) for loops.

    python -m tests.sdk.instrumentation.torch.worker TOOL

A request is {"loop": NAME, "directory": PATH}. The process imports torch's compiler once, which
every optimizer imports.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from tests.kit.program_server import run_ranks, serve

from .loops import every
from .tools import TOOLS, run


def main() -> None:
    """Serve until the end of the input."""
    torch.set_num_threads(1)
    tool, loops = TOOLS[sys.argv[1]], every()

    def answer(request: dict[str, Any]) -> list[int]:
        loop, directory = loops[request["loop"]], Path(request["directory"])
        return run_ranks(lambda: run(loop, tool(), directory).as_json(), loop.ranks, directory)

    serve(answer)


if __name__ == "__main__":
    main()
