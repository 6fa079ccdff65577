"""File descriptors: the limit is raised, and connections leave room for everything else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.collector.service.descriptors import ConnectionLimits, fitting, problem
from tests.kit.servers.away import until
from tests.kit.servers.serving import PROGRAM, Serving, serving

from .test_figures import samples
from .test_running import post, request

LIMIT = 320


@pytest.mark.parametrize(
    ("wanted", "limit", "found"),
    [
        (ConnectionLimits(1000, 1000), 1 << 20, ConnectionLimits(1000, 1000)),
        (ConnectionLimits(1000, 1000), 4256, ConnectionLimits(1000, 1000)),
        (ConnectionLimits(1000, 1000), 4255, ConnectionLimits(999, 999)),
        (ConnectionLimits(1000, 100), 512, ConnectionLimits(123, 12)),
        (ConnectionLimits(0, 1000), 256, ConnectionLimits(0, 192)),
        (ConnectionLimits(1000, 1), 64, ConnectionLimits(15, 1)),
    ],
)
def test_connections_that_fit(
    wanted: ConnectionLimits, limit: int, found: ConnectionLimits
) -> None:
    assert fitting(wanted, limit) == found
    assert bool(problem(wanted, limit)) == (found != wanted)
    assert found.descriptors < limit


def limited(soft: int, hard: int, *command: str) -> list[str]:
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
    return [sys.executable, "-c", code + PROGRAM, *command]


def test_check_compares_the_limit_with_the_connections(tmp_path: Path) -> None:
    def check(soft: int, hard: int) -> str:
        command = limited(soft, hard, "collector", "--spool", str(tmp_path), "--check")
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr

    assert "file descriptors" in check(LIMIT, LIMIT)
    assert check(LIMIT, 5000) == "", "the soft limit is raised"


def open_files(here: Serving) -> int:
    return len(list(Path(f"/proc/{here.process.pid}/fd").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_idle_grpc_connections_leave_room_for_everything_else(tmp_path: Path) -> None:
    """More of them than there are descriptors, none with a request."""
    with serving(tmp_path / "data", program=limited(LIMIT // 2, LIMIT)[-1]) as here:
        limits = Path(f"/proc/{here.process.pid}/limits").read_text()
        (line,) = [each for each in limits.splitlines() if each.startswith("Max open files")]
        assert line.split()[3:5] == [str(LIMIT), str(LIMIT)]
        host, _, port = here.grpc.rpartition(":")
        held = [socket.create_connection((host, int(port)), 30) for _ in range(LIMIT)]
        until(lambda: samples(here).get(("refused_requests_total", "connections", "-", "grpc")))
        until(lambda: open_files(here) > LIMIT // 2)
        assert open_files(here) < LIMIT
        url = f"{here.http}/v1/traces"
        assert post(url, request(), "application/x-protobuf")[0] == 200
        second = here.translator()
        assert second is not None
        os.kill(second, signal.SIGKILL)
        until(lambda: here.translator() not in (None, second))
        for connection in held:
            connection.close()
        assert here.end() == 0
