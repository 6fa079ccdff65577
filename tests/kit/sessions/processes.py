"""Training processes that tests drive, starve, interrupt and kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAMS = Path(__file__).parents[2] / "sdk" / "programs" / "faults"
ROOT = Path(__file__).parents[3]


def environment(**more: str) -> dict[str, str]:
    """The environment of a training process: nothing that would place it in a job or a trace.

    The sampler is off, because its marks depend on time; `CIRRON_SAMPLE_INTERVAL` in `more`
    switches it on.
    """
    taken = ("OTEL_", "CIRRON_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM", "OMPI", "TRACE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(taken)}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "CIRRON_SAMPLE_INTERVAL": "none", **more}


def start(
    program: str, *arguments: object, env: dict[str, str] | None = None, **more: Any
) -> subprocess.Popen[str]:
    """A process that runs one of the programs."""
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), *map(str, arguments)]
    return subprocess.Popen(command, env=environment(**env or {}), text=True, **more)


def run(
    program: str, *arguments: object, env: dict[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; its exit code is for the caller to judge."""
    process = start(
        program, *arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def until(holds: Callable[[], object], seconds: float = 180.0) -> None:
    """Wait until something holds; `seconds` is far more than it takes."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


class Agent:
    """A process that runs `agent.py`: `do` has it do something, and gives what it answers."""

    def __init__(self, env: dict[str, str] | None = None, **more: Any) -> None:
        pipe = subprocess.PIPE
        self.popen = start("agent", env=env, stdin=pipe, stdout=pipe, stderr=pipe, **more)
        self.said: list[str] = []
        """What it logged."""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.said.append(line)

    def do(self, what: str, **arguments: Any) -> Any:
        """Have it do something; fails where that ended the process."""
        self.ask(what, **arguments)
        return self.answer()

    def ask(self, what: str, **arguments: Any) -> None:
        """Have it do something, without waiting for it."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.popen.stdin.flush()

    def answer(self) -> Any:
        """What it answers."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            self.popen.wait(180)
            self._listener.join(60)
            raise AssertionError(f"exit code {self.popen.returncode}: {''.join(self.said)}")
        return json.loads(line)

    def end(self) -> int:
        """Let it come to its end; its exit code."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        return self.popen.wait(180)

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(180)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        self._listener.join(60)
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a process, which is killed at the end if it still runs."""
    variables = options.pop("env", environment())
    with subprocess.Popen(command, cwd=ROOT, env=variables, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
