"""A local cluster of Ray, and a driver that runs programs on it one after the other.

    python -m tests.system.frameworks.ray_cluster
    python -m tests.system.frameworks.ray_cluster FRAMEWORK TOOL

Without arguments it starts a cluster, prints its address and runs until the end of its input. With
arguments it serves like `tests.system.frameworks.worker`, but all programs share its process: a
driver connects to a cluster once.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

from tests.kit.program_server import ProgramServer
from tests.kit.sessions.processes import ROOT, environment

from . import Program, programs_of, ray_setup
from .running import Worker

_MODULE = "tests.system.frameworks.ray_cluster"


@contextmanager
def driver(
    python: Path, variables: Mapping[str, str], framework: str, tool: str
) -> Iterator[Worker]:
    """Yield the programs of a framework, run by a driver of the cluster with these variables."""
    command = [str(python), "-m", _MODULE, framework, tool]
    with ProgramServer(command, variables) as server:
        yield Worker(server, framework, tool)


@contextmanager
def cluster(python: Path) -> Iterator[dict[str, str]]:
    """Start a cluster; yield the variables with which a driver connects to it."""
    # The paths of Ray's sockets are limited to about 100 characters.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as home:
        variables = {
            # A token of its own: Ray would otherwise write one to the home directory.
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": home, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0",
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1", "RAY_TRAIN_METRICS_ENABLED": "0",
            # No process that no program needs: each imports Ray.
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
            "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        process = _process([str(python), "-m", _MODULE], variables)
        assert process.stdout is not None
        try:
            yield {**variables, "RAY_ADDRESS": process.stdout.readline().strip()}
        finally:
            process.communicate(timeout=60)


def _process(command: list[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    env = environment(**variables)
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True)


def _serve_cluster() -> None:
    ray = importlib.import_module("ray")
    answers = _answers()
    setups = _start_setups(Path(os.environ[ray_setup.VARIABLE], ray_setup.NAME))
    found = ray.init(
        num_cpus=4, include_dashboard=False, object_store_memory=80 * 1024 * 1024,
        logging_level="error", log_to_driver=False, _temp_dir=os.environ["RAY_TMPDIR"],
    )  # fmt: skip
    print(found.address_info["address"], file=answers, flush=True)
    sys.stdin.read()
    ray.shutdown()
    os.kill(setups, signal.SIGKILL)
    os.waitpid(setups, 0)


def _start_setups(path: Path) -> int:
    """Let Ray start each worker through `ray_setup`; return the id of its server's process."""
    program = importlib.import_module("ray._private.workers.setup_worker").__file__
    parameters = importlib.import_module("ray._private.parameter").RayParams
    assert program is not None
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    if pid := os.fork():
        listener.close()
        # No driver of the tests gets the logs of workers.
        parameters.__init__ = partialmethod(
            parameters.__init__, setup_worker_path=ray_setup.__file__, include_log_monitor=False
        )
        return pid
    try:
        _serve_setups(listener, program)
    finally:
        os._exit(1)


def _serve_setups(listener: socket.socket, program: str) -> None:
    """Answer each request with the command of `_replacement`, or not if that fails."""
    parent = os.getppid()
    listener.settimeout(5)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        # Ray may have ended the process that asks.
        with suppress(OSError), connection, connection.makefile("rw") as stream:
            if line := stream.readline():
                try:
                    command = _replacement(program, json.loads(line))
                except (Exception, SystemExit):
                    traceback.print_exc()
                else:
                    stream.write(json.dumps([command, dict(os.environ)]) + "\n")


def _replacement(program: str, request: dict[str, Any]) -> list[str]:
    """Run Ray's program in place of the process that asks; return the command that it executes.

    The variables of the command are then those of this process.
    """
    replaced: list[list[str]] = []
    os.execvp = lambda _, args: replaced.append(args)  # type: ignore[assignment, return-value]
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = [program, *request["arguments"]]
    runpy.run_path(program, run_name="__main__")
    return replaced.pop()


def _serve(framework: str, tool: str) -> None:
    answers = _answers()
    programs = programs_of(framework)
    worker = importlib.import_module("tests.system.frameworks.worker")
    for line in sys.stdin:
        request = json.loads(line)
        directory, program = Path(request["directory"]), programs[request["program"]]
        output = os.open(directory / "output-0.txt", os.O_WRONLY | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        run = partial(_run, program, tool, directory)
        statuses = worker.untraced(program, directory, run) if tool == "untraced" else run()
        print(json.dumps(statuses), file=answers, flush=True)


def _run(program: Program, tool: str, directory: Path) -> list[int]:
    """Run a program in this process, which connects to the cluster once."""
    for module in ("numpy", "torch"):  # their generators are seeded before each program
        importlib.import_module(module)
    ray = importlib.import_module("ray")
    if not ray.is_initialized():
        ray.init(os.environ["RAY_ADDRESS"], logging_level="error", log_to_driver=False)
    (directory / "work-0").mkdir()
    os.chdir(directory / "work-0")
    trace = importlib.import_module("tests.system.frameworks.worker").trace
    outcome = trace(program, tool, directory)
    (directory / "outcome-0.json").write_text(json.dumps(asdict(outcome)))
    return [0]


def _answers() -> Any:
    """Return the stream for answers; everything else goes to stderr, as Ray prints to stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _serve(*sys.argv[1:])
    else:
        _serve_cluster()
