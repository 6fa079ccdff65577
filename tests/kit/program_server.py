"""Processes that run programs one after the other, each rank in a forked process of its own.

A server process imports the heavy modules once and never trains, so that forking it is safe. It
reads requests, one JSON object a line, and answers each with the exit statuses of the ranks. Each
rank leaves `outcome-<rank>.json` and `output-<rank>.txt` in the directory of the request.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from .backends.process import free_port
from .sessions.processes import ROOT, environment

LIMIT_S = 240.0


class ProgramError(Exception):
    """A rank of a program did not end; the message is the end of its output."""


class ProgramServer:
    """A server process, started when first needed."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._command = list(command)
        self._variables = dict(variables)
        self._process: subprocess.Popen[str] | None = None

    def run(self, ranks: int, directory: Path, **request: str) -> list[dict[str, Any]]:
        """Run a program; return the outcome of each rank. Raises ProgramError."""
        directory.mkdir(parents=True, exist_ok=True)
        statuses = self._ask(request | {"directory": str(directory.absolute())})
        outcomes = []
        for rank in range(ranks):
            outcome = directory / f"outcome-{rank}.json"
            if statuses[rank : rank + 1] != [0] or not outcome.exists():
                path = directory / f"output-{rank}.txt"
                output = path.read_text()[-3000:] if path.exists() else "the server has ended"
                raise ProgramError(f"rank {rank} of {request} failed\n{output}")
            outcomes.append(json.loads(outcome.read_text()))
        return outcomes

    def _ask(self, request: dict[str, str]) -> list[int]:
        """Return the exit statuses of the ranks; none if the server is dead."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None  # it died
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        statuses: list[int] = json.loads(process.stdout.readline() or "[]")
        return statuses

    def _start(self) -> subprocess.Popen[str]:
        pipe, env = subprocess.PIPE, environment(**self._variables)
        return subprocess.Popen(
            self._command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True
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


def serve(
    answer: Callable[[dict[str, Any]], list[int]],
    requests: Iterable[str] | None = None,
    answers: IO[str] | None = None,
) -> None:
    """Answer the requests, those of standard input by default, until their end."""
    gc.freeze()  # a collection in a forked process then copies none of these objects' pages
    for line in sys.stdin if requests is None else requests:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


class ForkedServer:
    """A second server, forked from a server, which can import more than the first one may."""

    def __init__(self, answer: Callable[[dict[str, Any]], list[int]], modules: Sequence[str]):
        self._answer, self._modules = answer, modules
        self._start()

    def _start(self) -> None:
        ours, its = socket.socketpair()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                ours.close()
                for module in self._modules:
                    importlib.import_module(module)
                with its, its.makefile("r") as requests, its.makefile("w") as answers:
                    serve(self._answer, requests, answers)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        its.close()
        self._pid: int | None = pid
        self._stream = ours.makefile("rw")
        ours.close()

    def answer(self, request: dict[str, Any]) -> list[int]:
        """Return the exit statuses of the ranks; none if the second server dies.

        If it has died before, a new one answers.
        """
        if self._pid is None or os.waitpid(self._pid, os.WNOHANG)[0]:
            self._start()
        line = ""
        with contextlib.suppress(ConnectionError):
            self._stream.write(json.dumps(request) + "\n")
            self._stream.flush()
            line = self._stream.readline()
        if not line:
            self.close()
        statuses: list[int] = json.loads(line or "[]")
        return statuses

    def close(self) -> None:
        """End the second server, and wait for it."""
        with contextlib.suppress(ConnectionError):
            self._stream.close()
        if self._pid is not None:
            os.waitpid(self._pid, 0)
            self._pid = None


def run_ranks(
    act: Callable[[], dict[str, Any]], ranks: int, directory: Path, limit_s: float = LIMIT_S
) -> list[int]:
    """Call `act` in a forked process for each rank; return the exit statuses.

    The directory gets the outcome that `act` returns, and the output; each process works in
    `work-<rank>`. The status of a process that is killed at the time limit is -9, and its output
    ends with the limit.
    """
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    pids = [_rank(act, job if ranks > 1 else {}, directory, rank) for rank in range(ranks)]
    end = time.monotonic() + limit_s
    statuses = []
    for rank, pid in enumerate(pids):
        statuses.append(exit_status(pid, end))
        if statuses[-1] == -signal.SIGKILL and time.monotonic() > end:
            with (directory / f"output-{rank}.txt").open("a") as output:
                output.write(f"\nrank {rank} was killed at the time limit of {limit_s:g} s\n")
    return statuses


def _rank(
    act: Callable[[], dict[str, Any]], job: Mapping[str, str], directory: Path, rank: int
) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if job:
            os.environ |= {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        output = os.open(directory / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(output, stream)
        work = directory / f"work-{rank}"
        work.mkdir()
        os.chdir(work)
        (directory / f"outcome-{rank}.json").write_text(json.dumps(act()))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def exit_status(pid: int, end: float) -> int:
    """Wait for a child, which is killed when the monotonic clock reaches `end`."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
