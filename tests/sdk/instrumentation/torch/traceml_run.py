"""traceml-ai over all loops of one process: its steps, told apart by when each loop ran.

    python -m tests.sdk.instrumentation.torch.traceml_run FILE

runs in traceml-ai's environment. It has one session a process and a server beside it, so the loops
run one after the other; `steps` starts both, and reads what the server has stored.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kit.backends.process import free_port
from tests.kit.sessions.processes import environment

from .loops import every
from .peers import TRACEML
from .tools import TraceML, run

_RUN_NAME = "matrix"
_WAIT_S = 600.0
_PHASES = {
    "dataloader_next": "fetch",
    "forward_time": "forward",
    "backward_time": "backward",
    "optimizer_step": "optimizer step",
}


def main() -> None:
    """Run every loop of one rank; when each ran, and whether it raised."""
    import torch

    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    tool = TraceML()
    tool.open(target.parent)
    ran = {}
    for loop in every().values():
        if loop.ranks == 1:
            # What the loop before left outside of its steps would count for the first of this.
            tool.empty_step()
            time.sleep(0.002)
            begun, before = time.time(), TraceML.marked
            outcome = run(loop, tool, target.parent)
            ran[loop.name] = [begun, time.time(), outcome.error, TraceML.marked - before]
            time.sleep(0.002)
    target.write_text(json.dumps(ran))
    time.sleep(5)  # it sends what it has every two seconds


def steps(directory: Path, *, marked: bool) -> dict[str, dict[str, Any]]:
    """By loop: `error`, `marked`, `steps`, and the calls of each phase in these.

    `marked`: with `trace_step` around each usual step, and around how many it stood.
    """
    directory.mkdir(parents=True)
    target = directory / "ran.json"
    with _server(directory) as port:
        variables = {"TRACEML": f"{_RUN_NAME}:{port}", "CUDA_VISIBLE_DEVICES": ""}
        if marked:
            variables["MARKED"] = "1"
        done = subprocess.run(
            [TRACEML.make(), "-m", "tests.sdk.instrumentation.torch.traceml_run", str(target)],
            cwd=directory,  # it writes logs there
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"traceml-ai: {done.stderr[-2000:]}")
    rows = _rows(directory)
    found = {}
    for name, (begun, ended, error, around) in json.loads(target.read_text()).items():
        own = [calls for at, calls in rows if begun <= at <= ended]
        phases = sum((Counter(calls) for calls in own), Counter[str]())
        found[name] = {
            "error": error, "marked": around, "steps": len(own), "phases": dict(phases),
        }  # fmt: skip
    return found


def _rows(directory: Path) -> list[tuple[float, dict[str, int]]]:
    """When each step ended, and how often each phase was called in it."""
    (stored,) = directory.rglob("telemetry")
    with contextlib.closing(sqlite3.connect(stored)) as database:
        rows = database.execute("SELECT sample_ts_s, events_json FROM step_time_samples").fetchall()
    return [(at, _calls(json.loads(events))) for at, events in rows]


def _calls(events: dict[str, Any]) -> dict[str, int]:
    calls = {}
    for key, by_device in events.items():
        phase = _PHASES.get(key.rpartition(":")[2])
        if phase is not None:
            calls[phase] = sum(device["n_calls"] for device in by_device.values())
    return calls


@contextlib.contextmanager
def _server(directory: Path) -> Iterator[int]:
    """`traceml serve`, and the port on which it listens; what it has is stored behind it."""
    port = free_port()
    command = [TRACEML.make().with_name("traceml"), "serve", "--run-name", _RUN_NAME]
    with (directory / "server.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, "--logs-dir", directory / "logs", "--aggregator-port", str(port)],
            cwd=directory,
            env=environment(),
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for(process, port)
            yield port
        finally:
            process.terminate()
            process.wait(120)


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server listens: what is sent to it earlier is lost."""
    end = time.monotonic() + _WAIT_S
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 10):
            return
        time.sleep(0.05)
    raise RuntimeError("`traceml serve` does not listen")


if __name__ == "__main__":
    main()
