"""A collector that is stopped, or that loses its second process, while it starts."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cirron_otel.collector.service.second_process import command
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.away import until
from tests.kit.servers.serving import PROGRAM, Serving, serving, spans_of

from .test_ready import ready, take

SELF_TERMINATED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "module",
    [
        "contextlib",
        "typing",
        "threading",
        "click",
        "cirron_otel.tools.cli.collector",
        "cirron_otel.collector.service.config_file",
        "cirron_otel.collector.service.event_loop",
        "cirron_otel.collector.receiver.grpc.server",
        "cirron_otel.collector.receiver.http.server",
    ],
)
def test_sigterm_during_the_start_ends_it_with_exit_code_0(module: str, tmp_path: Path) -> None:
    """Nothing that is not a log line is written."""
    program = SELF_TERMINATED.format(module=module) + PROGRAM
    command = [sys.executable, "-c", program, "collector", "--spool", str(tmp_path / "data"),
               "--grpc", "localhost:0", "--http", "localhost:0"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode, done.stdout) == (0, "")
    assert all(line.startswith("{") for line in done.stderr.splitlines()), done.stderr


def test_sigterm_while_the_second_process_imports_its_modules_is_ignored(tmp_path: Path) -> None:
    """A service manager may send it to all processes of the service."""
    worker = tmp_path / "cirron_otel" / "collector" / "service" / "worker.py"
    worker.parent.mkdir(parents=True)
    for folder in list(worker.parents)[:3]:
        (folder / "__init__.py").touch()
    worker.write_text(
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "def main(): print('runs')\n"
    )
    done = subprocess.run(command([str(tmp_path), *sys.path]), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"runs\n"), done.stderr


def test_signals_after_the_first_do_not_change_the_exit_code(tmp_path: Path) -> None:
    """They arrive until the process is gone, also while its event loop is closed."""
    config = tmp_path / "c.yaml"
    (endpoint,) = free_endpoints(1)
    exporter = f"{{type: otlp, protocol: grpc, endpoint: 'http://{endpoint}'}}"
    config.write_text(f"exporters: [{exporter}]\ndrain_s: 0.001\n")
    with serving(tmp_path / "data", "--config", str(config), program=PROGRAM) as here:
        assert take(here, "one") == 200
        numbers = itertools.cycle((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        while here.process.poll() is None:
            here.process.send_signal(next(numbers))
            time.sleep(0.001)
        assert here.process.returncode in (1, 7)


def test_sigterm_during_a_check_ends_it_with_exit_code_130(tmp_path: Path) -> None:
    """Exit code 0 would mean that the configuration is good."""
    program = SELF_TERMINATED.format(module="cirron_otel.core.config.engine") + PROGRAM
    command = [sys.executable, "-c", program, "collector", "--check"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=180
    )
    assert (done.returncode, done.stderr) == (130, "cirron-otel: interrupted\n")


def test_second_process_that_is_killed_before_it_is_ready_is_restarted(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_first(pid: int) -> None:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        while not killed:
            try:
                killed.extend(int(each) for each in children.read_text().split())
            except OSError:
                return
        os.kill(killed[0], signal.SIGKILL)

    grpc, http = free_endpoints(2)
    command = [sys.executable, "-c", PROGRAM, "collector", "--spool", str(tmp_path / "data"),
               "--json", "--grpc", grpc, "--http", http]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        killer = threading.Thread(target=kill_first, args=(process.pid,))
        killer.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            killer.join()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            assert children.split() != [str(killed[0])]
        finally:
            process.terminate()
        assert process.wait(180) == 0


def test_end_while_the_second_process_is_away_stores_everything(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as here:
        translator = here.translator()
        assert translator is not None
        os.kill(translator, signal.SIGSTOP)
        assert take(here, "one") == 200
        here.process.terminate()
        until(lambda: "shutting down" in here.log.read_text())
        os.kill(translator, signal.SIGKILL)  # it has received the order to finish
        assert here.process.wait(180) == 0
    assert [span["name"] for span in spans_of(here.folder)] == ["one"]


@pytest.mark.parametrize("receiver", ["grpc", "http", "traceml", "health"])
def test_address_in_use_is_a_problem_that_may_pass(receiver: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = tmp_path / "c.yaml"
        config.write_text(f"health: {{address: '{address}'}}\n" if receiver == "health" else "{}")
        options = [] if receiver == "health" else [f"--{receiver}", address]
        command = [sys.executable, "-c", PROGRAM, "collector", "--spool", str(tmp_path / "data"),
                   "--config", str(config), "--grpc", "localhost:0", "--http", "localhost:0",
                   *options]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 4
    assert f"cannot listen on {address}" in done.stderr


def test_health_address_answers_operational_requests_only(tmp_path: Path) -> None:
    (health,) = free_endpoints(1)
    config = tmp_path / "c.yaml"
    config.write_text(f"health: {{address: '{health}'}}\nreceivers: {{auth: {{tokens: [t-1]}}}}\n")
    with serving(tmp_path / "data", "--config", str(config)) as here:
        beside = _at(here, f"http://{health}")
        assert [ready(beside, path) for path in ("/health", "/ready", "/metrics")] == [
            200,
            200,
            401,
        ]
        assert take(beside, "one") == 404
        assert here.end() == 0


def _at(here: Serving, url: str) -> Serving:
    other = object.__new__(Serving)
    other.__dict__.update(here.__dict__, http=url)
    return other


def test_service_manager_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(180)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        with serving(tmp_path / "data") as here:
            states = [manager.recv(100) for _ in range(4)]
            assert states == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            assert here.end() == 0
        while (state := manager.recv(100)) == b"WATCHDOG=1":
            pass
        assert state == b"STOPPING=1"
