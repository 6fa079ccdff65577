"""Runs loops one after the other for another process, each in forked processes of its own.

    python -m tests.sdk.instrumentation.torch.worker TOOL

reads lines {"loop": NAME, "directory": PATH} and answers each, when the loop is over, with a line:
its ranks' exit statuses. Each rank leaves `outcome-<rank>.json` and `output-<rank>.txt` in the
directory. This process itself never trains, so that forking it is safe, and torch is imported once,
with its compiler, which every optimizer imports.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo

from tests.kit.backends.process import free_port

from .loops import Loop, every
from .tools import TOOLS, run

_LIMIT_S = 120.0


def main() -> None:
    """Serve until the end of the input."""
    torch.set_num_threads(1)
    tool, loops = sys.argv[1], every()
    gc.freeze()  # a collection in a forked process then copies none of these objects' pages
    for line in sys.stdin:
        asked = json.loads(line)
        statuses = _run(loops[asked["loop"]], tool, Path(asked["directory"]))
        print(json.dumps(statuses), flush=True)


def _run(loop: Loop, tool: str, directory: Path) -> list[int]:
    """One process a rank; -9 for one that did not come to an end."""
    if loop.ranks > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        os.environ["WORLD_SIZE"] = str(loop.ranks)
    pids = [_rank(loop, tool, directory, rank) for rank in range(loop.ranks)]
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        os.environ.pop(name, None)
    end = time.monotonic() + _LIMIT_S
    return [_wait(pid, end) for pid in pids]


def _rank(loop: Loop, tool: str, directory: Path, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if loop.ranks > 1:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        output = os.open(directory / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        outcome = run(loop, TOOLS[tool](), directory)
        (directory / f"outcome-{rank}.json").write_text(json.dumps(outcome.as_json()))
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(pid: int, end: float) -> int:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
