"""Starts the workers of a section: processes that answer lines, each in a directory of its own.

The full benchmark starts each worker as a new process. A tiny benchmark would spend most of its CPU
time on importing torch in each worker. It starts one process for each interpreter instead, which
imports the workers' program and never trains. Each worker is a fork of that process, with its own
arguments, directory, environment and streams.

Run as a file, `worker_processes.py SOCKET PROGRAM MODULE...`, this is that process. It then imports
only the standard library, the program and the modules, because the environment of another tool
contains nothing of ours.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_END_S = 60.0
"""How long a worker may take to end after its input has ended."""
_LONGEST = 1 << 18
"""The maximum size of a request, bytes."""


class Process:
    """A running worker."""

    def __init__(self, kill: Callable[[], object], stdin: int, stdout: int) -> None:
        """Take over our ends of its pipes; `kill` kills it, unless it has ended."""
        self._kill = kill
        self._stdin = open(stdin, "w")  # noqa: SIM115
        self._stdout = open(stdout)  # noqa: SIM115

    def ask(self, request: str) -> str:
        """Send a line; return the line of the answer, which is empty if the process has ended."""
        with contextlib.suppress(BrokenPipeError):
            print(request, file=self._stdin, flush=True)
        return self._stdout.readline()

    def end(self) -> None:
        """End its input, and wait until it has ended; kill it if that takes too long."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        end = time.monotonic() + _END_S
        with self._stdout:
            number = self._stdout.fileno()
            while select.select([number], [], [], max(end - time.monotonic(), 0.0))[0]:
                if not os.read(number, 1 << 16):
                    return
        self._kill()


class Workers:
    """Starts processes of one program, and ends them all."""

    def __init__(self, program: Path, is_forked: bool = False, modules: Sequence[str] = ()) -> None:
        """With `is_forked`, fork them from a process that has imported these modules as well."""
        self._program, self._is_forked, self._modules = program, is_forked, modules
        self._servers: dict[Path, tuple[socket.socket, subprocess.Popen[bytes]]] = {}
        self._children: list[subprocess.Popen[bytes]] = []

    def start(
        self, python: Path, arguments: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> Process:
        """Start one in this directory; what it prints goes to the file `log` there."""
        stdin, ours = os.pipe()
        theirs, stdout = os.pipe()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        streams = (stdin, stdout, log)
        try:
            if self._is_forked:
                kill = self._fork(python, arguments, folder, env, streams)
            else:
                child = subprocess.Popen(
                    [python, self._program, *arguments], cwd=folder, env=dict(env),
                    stdin=stdin, stdout=stdout, stderr=log,
                )  # fmt: skip
                self._children.append(child)
                kill = child.kill
        finally:
            for number in streams:
                os.close(number)
        return Process(kill, ours, theirs)

    def _fork(
        self, python: Path, arguments: Sequence[str], folder: Path, env: Mapping[str, str],
        streams: Sequence[int],
    ) -> Callable[[], object]:  # fmt: skip
        """Return the function that kills it, by a request to its parent.

        Only the parent can decide whether the pid is still the worker's.
        """
        connection, _ = self._servers.get(python) or self._serve(python, env)
        request = {"arguments": list(arguments), "directory": str(folder), "env": dict(env)}
        socket.send_fds(connection, [json.dumps(request).encode()], streams)
        answer = connection.recv(8)
        if not answer:
            raise RuntimeError(f"the process of {self._program.name} has ended")
        kill = {"kill": int.from_bytes(answer)}
        return lambda: connection.send(json.dumps(kill).encode())

    def _serve(
        self, python: Path, env: Mapping[str, str]
    ) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Start the process that is forked; its errors go to our own."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = str(theirs.fileno())
            command = [str(python), __file__, number, self._program.stem, *self._modules]
            server = subprocess.Popen(
                command, env=dict(env), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._servers[python] = ours, server
        return ours, server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for all; each worker has ended, or is killed."""
        for connection, server in self._servers.values():
            connection.close()
            server.wait()
        for child in self._children:
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


# The process that is forked.


def serve(connection: socket.socket, program: Any) -> None:
    """Fork a worker for each request, and answer with its pid, until the connection ends.

    A request `{"kill": PID}` kills a worker instead, unless it has ended, and gets no answer.

    Return when all workers have ended, or are killed. Each is waited for, so that its CPU time is
    part of this process's.
    """
    gc.freeze()
    running: set[int] = set()
    while True:
        data, streams, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        if not data:
            break
        request = json.loads(data)
        if "kill" in request:
            if request["kill"] in running:  # it has not been waited for, so the pid is its own
                os.kill(request["kill"], signal.SIGKILL)
            continue
        pid = os.fork()
        if not pid:
            connection.close()
            work(program, request, streams)
        running.add(pid)
        for number in streams:
            os.close(number)
        connection.send(pid.to_bytes(8))
        _reap(running)
    end = time.monotonic() + _END_S
    while running:
        if time.monotonic() > end:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        _reap(running)


def _reap(running: set[int]) -> None:
    """Remove the workers that have ended."""
    while running and (pid := os.waitpid(-1, os.WNOHANG)[0]):
        running.discard(pid)


def work(program: Any, request: dict[str, Any], streams: Sequence[int]) -> None:
    """Be a worker of the program until it ends."""
    try:
        for target, number in enumerate(streams):
            os.dup2(number, target)
            os.close(number)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["env"])
        program.main(*request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)  # a program that succeeds has ended the process


if __name__ == "__main__":
    gc.disable()  # collections take a fifth of the time of these imports
    _program = importlib.import_module(sys.argv[2])
    for _module in sys.argv[3:]:
        importlib.import_module(_module)
    gc.enable()
    serve(socket.socket(fileno=int(sys.argv[1])), _program)
    os._exit(0)  # torch takes a second to be torn down, and triton then prints what it has leaked
