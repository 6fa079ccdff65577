"""A process that has imported `cirron-otel`, and runs each command in a copy of itself.

Most of the CPU time of a short command is the start of Python and its imports. `CommandServer`
starts the program below once. For each command the program forks, takes over the arguments, the
working directory, the environment and the standard streams, and runs the command's entry point to
the normal end of the interpreter. A command that differs in how Python itself starts, such as one
with another `PYTHONUTF8`, is a new program: `starts_alike` finds these.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing.connection
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

_COMMANDS = (
    "convert", "demo", "dgrr", "diagnose", "diff", "doctor", "export", "report", "run", "runs",
    "spool", "stormlog",
)  # fmt: skip
PRELOADED = (
    "cirron_otel.core.analysis.divergence.settling",
    "cirron_otel.core.analysis.run_catalogue",
    "cirron_otel.core.analysis.run_groups",
    "cirron_otel.core.analysis.verify",
    "cirron_otel.core.run.choosing",
    "cirron_otel.core.run.comparison",
    "cirron_otel.core.run.load.arranged",
    "cirron_otel.core.run.load.blocks",
    "cirron_otel.core.run.perfetto",
    "cirron_otel.core.run.report",
    "cirron_otel.core.targets.sql",
    "cirron_otel.core.translator.translate",
    *(f"cirron_otel.tools.cli.{name}" for name in _COMMANDS),
    "cirron_otel.tools.cli.page.document",
    "cirron_otel.tools.cli.pager",
    "cirron_otel.tools.convert.as_spool",
    "cirron_otel.tools.convert.convert",
    "cirron_otel.tools.convert.export",
    "cirron_otel.tools.convert.parquet",
    "cirron_otel.tools.doctor.examine",
    "cirron_otel.tools.frames.step_files",
    "cirron_otel.tools.present.closing",
    "cirron_otel.tools.present.conclude",
    "cirron_otel.tools.present.full_text",
    "cirron_otel.tools.present.text",
    "numpy",
    "rich.markdown",
    "rich.table",
)
COLUMNS = (
    *PRELOADED,
    "cirron_otel.core.columns.known_batches",
    "cirron_otel.core.columns.parquet_files",
    "cirron_otel.core.columns.store",
    "cirron_otel.core.engines.cache",
    "cirron_otel.core.engines.postgres_engine",
    "cirron_otel.core.run.engines.opening",
    "ibis.backends.sql.compilers.duckdb",
    "ibis.backends.sql.compilers.postgres",
    "pandas",  # DuckDB and pyarrow import it if it is installed
)
"""With what columnar tables and `--engine` import besides."""
COLLECTOR = (
    "cirron_otel.tools.cli.collector",
    "cirron_otel.collector.receiver.grpc.front",
    "cirron_otel.collector.receiver.http.server",
    "cirron_otel.collector.receiver.listening",
    "cirron_otel.collector.receiver.traceml_server",
    "cirron_otel.collector.service.config_file",
    "cirron_otel.collector.service.event_loop",
    "cirron_otel.collector.service.service",
    "cirron_otel.core.targets.sql",
    "uvloop",
)
"""The modules that `cirron-otel collector` imports, without grpc, which would handle each fork."""
_OF_PYTHON = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC")
"""The prefixes of variables that are read when a process starts, ahead of any of our code."""


def starts_alike(environment: Mapping[str, str], other: Mapping[str, str] = os.environ) -> bool:
    """Return whether the interpreter would start in `environment` as in `other`.

    `other` is this process's environment by default.
    """
    names = {*environment, *other}
    return all(
        environment.get(name) == other.get(name) for name in names if name.startswith(_OF_PYTHON)
    )


class StartedCommand:
    """A running command, with the methods of `subprocess.Popen` that tests use.

    For one thread.
    """

    def __init__(self, connection: socket.socket, pid: int, stdout: IO[str]) -> None:
        self._connection, self.pid, self.stdout = connection, pid, stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the command runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not multiprocessing.connection.wait([self._connection], timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            status = int.from_bytes(_exactly(self._connection, 8))
            self.returncode = os.waitstatus_to_exitcode(status)
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the command has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class CommandServer:
    """Runs commands; `shared_server` is for all tests of a process."""

    def __init__(self, modules: Sequence[str] = PRELOADED) -> None:
        """Start a process that imports these modules."""
        self._directory = tempfile.TemporaryDirectory()
        self._address = str(Path(self._directory.name, "commands"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._address)
        listener.listen(64)
        with listener:
            command = [sys.executable, "-P", __file__, str(listener.fileno()), *modules]
            # A process with a single thread is forked.
            env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=env
            )

    def run(
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        stdin: bytes = b"",
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as `subprocess.run` with captured output does."""
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        with socket.socket(socket.AF_UNIX) as connection:
            pid = self._start(connection, command, cwd, env, theirs)
            try:
                out, err = _communicate(ours, stdin, time.monotonic() + timeout)
            except TimeoutError:
                os.kill(pid, 9)
                raise subprocess.TimeoutExpired(command, timeout) from None
            code = os.waitstatus_to_exitcode(int.from_bytes(_exactly(connection, 8)))
        return subprocess.CompletedProcess(list(command), code, out, err)

    def start(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], stderr: IO[str]
    ) -> StartedCommand:
        """Start a command as `subprocess.Popen` does, with its standard output as text."""
        out, theirs = os.pipe()
        connection = socket.socket(socket.AF_UNIX)
        streams = [os.open(os.devnull, os.O_RDONLY), theirs, os.dup(stderr.fileno())]
        try:
            pid = self._start(connection, command, cwd, env, streams)
        except BaseException:
            connection.close()
            os.close(out)
            raise
        return StartedCommand(connection, pid, os.fdopen(out, encoding="utf-8"))

    def _start(
        self,
        connection: socket.socket,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        streams: list[int],
    ) -> int:
        """Start a command with these standard streams, which are closed; return its process id."""
        request = json.dumps({"argv": list(command), "cwd": str(cwd), "env": dict(env)}).encode()
        try:
            connection.connect(self._address)
            socket.send_fds(connection, [len(request).to_bytes(8)], streams)
        finally:
            for number in streams:
                os.close(number)
        connection.sendall(request)
        return int.from_bytes(_exactly(connection, 8))

    def write_program(self, path: Path, command: Path) -> None:
        """Write an executable file that runs the command at `command` (see `forked_command`)."""
        client = Path(__file__).with_name("forked_command.py")
        words = [sys.executable, "-IS", str(client), self._address, str(command)]
        path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        path.chmod(0o755)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._directory.cleanup()


@cache
def shared_server(modules: Sequence[str] = PRELOADED) -> CommandServer:
    """Return the server of this process with these modules; it is started at the first call."""
    server = CommandServer(modules)
    atexit.register(server.close)
    return server


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the command server is gone")
        data += more
    return data


def _communicate(pipes: list[int], stdin: bytes, end: float) -> tuple[bytes, bytes]:
    """Write to the first pipe and read the others to their end; the pipes are closed."""
    output: dict[int, list[bytes]] = {number: [] for number in pipes[1:]}
    writer = threading.Thread(target=_write, args=(pipes[0], stdin))
    writer.start()
    with selectors.DefaultSelector() as selector:
        for number in output:
            selector.register(number, selectors.EVENT_READ)
        try:
            while selector.get_map():
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    output[key.fd].append(data)
                    if not data:
                        selector.unregister(key.fd)
        finally:
            for number in output:
                os.close(number)
    writer.join()
    out, err = (b"".join(parts) for parts in output.values())
    return out, err


def _write(pipe: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(pipe, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]


# The program.


def serve(listener: socket.socket) -> list[str]:
    """Fork for each connection; in the process that is to run the command, return its arguments."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    while True:
        if any(key.fileobj == 0 for key, _ in selector.select()):
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            selector.close()
            listener.close()
            return supervise(connection)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def supervise(connection: socket.socket) -> list[str]:
    """Fork the command and report its end; in its process, return its arguments."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    request = json.loads(_exactly(connection, int.from_bytes(size)))
    pid = os.fork()
    if pid:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the command
        for number in streams:
            os.close(number)
        with contextlib.suppress(OSError):  # the client is gone
            connection.sendall(pid.to_bytes(8))
            connection.sendall(os.waitpid(pid, 0)[1].to_bytes(8))
        os._exit(0)
    connection.close()
    for target, number in enumerate(streams):
        os.dup2(number, target)
        os.close(number)
    os.chdir(request["cwd"])
    if not starts_alike(request["env"]):
        os.execve(request["argv"][0], request["argv"], request["env"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    take_streams()
    return list(request["argv"])


def take_streams() -> None:
    """Open the standard streams again, as the start of the interpreter does."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        new = open(number, "r" if number == 0 else "w", encoding=old.encoding,  # noqa: SIM115
                   errors=old.errors, closefd=False)  # fmt: skip
        if number == 2:
            new.reconfigure(line_buffering=True)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


if __name__ == "__main__":
    gc.disable()  # collections take a fifth of the time of these imports
    for module in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(module)
    gc.enable()
    gc.freeze()
    sys.argv = serve(socket.socket(fileno=int(sys.argv[1])))
    __file__ = sys.argv[0]
    from cirron_otel.tools.cli import main

    sys.exit(main())
