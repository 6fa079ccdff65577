"""One backend as a process of its own: started on free loopback ports, ready, stopped for sure."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
READY_SECONDS = 180.0
STOP_SECONDS = 60.0
"""So long an end with SIGTERM may take."""
KILL_SECONDS = 120.0
ATTEMPTS = 3

# Loopback is never reached through a proxy, whatever the environment says.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class BackendError(Exception):
    """A backend did not start or did not answer; the message ends with its log's last lines."""


_reserved: deque[socket.socket] = deque(maxlen=200)
"""Sockets that do not listen, at the ports of the last free endpoints."""


def free_endpoints(count: int) -> list[str]:
    """`count` different free endpoints, `127.0.0.1:port`; the ports stay reserved for the caller.

    Connections are refused there until a server listens, which must set SO_REUSEADDR, as servers
    do.
    """
    found = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        found.append("{}:{}".format(*one.getsockname()))
        _reserved.append(one)
    return found


def free_port() -> int:
    """The port of a free endpoint."""
    return int(free_endpoints(1)[0].rpartition(":")[2])


def get(url: str, timeout: float = 30.0) -> tuple[int, bytes]:
    """The status and the body of an HTTP GET; (0, reason) where nobody answers."""
    try:
        with _opener.open(url, timeout=timeout) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


class Process:
    """A running backend, through the guard that ends it with us."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start `command` with `environment` added to ours (less its OTEL_ variables)."""
        self.log = log
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), *command],
                env={**kept, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline() or 0)
        if not self.pid:
            raise BackendError(f"{command[0]} could not be started: {self.tail()}")

    def running(self) -> bool:
        """Whether it still runs."""
        return self._guard.poll() is None

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """End it at once with SIGKILL, as a crash would, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self._guard.wait(KILL_SECONDS)
        self._close()

    def stop(self) -> None:
        """End it with SIGTERM, or with SIGKILL where that does not help; safe to call twice."""
        self._signal(signal.SIGTERM)
        try:
            self._guard.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._guard.wait(KILL_SECONDS)
        self._close()

    def _signal(self, number: signal.Signals) -> None:
        # The guard reaps the backend and ends right after it: while the guard runs, the pid is
        # its own.
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _close(self) -> None:
        for stream in (self._guard.stdin, self._guard.stdout):
            if stream is not None:
                stream.close()

    def wait_ready(self, url: str) -> None:
        """Wait until `url` answers 200; BackendError where it ends before, or takes too long."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if not self.running():
                raise BackendError(f"it ended before it was ready:\n{self.tail()}")
            if get(url, timeout=5.0)[0] == 200:
                return
            time.sleep(0.05)
        raise BackendError(f"{url} was not ready after {READY_SECONDS:.0f} s:\n{self.tail()}")


@contextlib.contextmanager
def running(
    command: Sequence[str],
    names: Sequence[str],
    health_path: str,
    directory: Path,
    environment: Mapping[str, str],
    health: str = "HEALTH",
) -> Iterator[tuple[Process, dict[str, str]]]:
    """Run `command` with a free endpoint in the environment for each of `names`, until ready.

    The port of NAME alone is in NAME_PORT. Where the one of `names` that `health` says answers
    200 to `health_path`, it is ready. Should another process have taken a port all the same, it is
    tried again with others.
    """
    log = directory / f"{Path(command[0]).name}.log"
    for attempt in range(1, ATTEMPTS + 1):
        endpoints = dict(zip(names, free_endpoints(len(names)), strict=True))
        ports = {f"{name}_PORT": endpoint.split(":")[1] for name, endpoint in endpoints.items()}
        process = Process(command, {**environment, **endpoints, **ports}, log)
        try:
            process.wait_ready(f"http://{endpoints[health]}{health_path}")
        except BackendError:
            process.stop()
            if attempt < ATTEMPTS and "address already in use" in process.tail():
                continue
            raise
        except BaseException:
            process.stop()
            raise
        break
    try:
        yield process, endpoints
    finally:
        process.stop()
