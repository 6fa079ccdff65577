"""`doctor` and the receiver of TraceML's frames: a real collector, and other servers."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from cirron_otel.tools.doctor import traceml
from cirron_otel.tools.doctor.traceml import HOST, PORT, examine_traceml
from tests.core.importers.traceml.test_receiver import (
    LOCAL,
    configured,
    received,
    refused,
)
from tests.kit.servers.serving import serving
from tests.tools.conftest import Run

TIMEOUT_S = 60.0


def states(**environ: str) -> dict[str, str]:
    return {each.name: str(each.state) for each in examine_traceml(environ, TIMEOUT_S)}


def problem(**environ: str) -> tuple[str, str]:
    """The finding and the advice of the last check, which is no success."""
    check = list(examine_traceml(environ, TIMEOUT_S))[-1]
    assert check.state != "ok"
    return check.found, check.advice


def test_a_collector_that_receives_traceml(tmp_path: Path, run: Run) -> None:
    with serving(tmp_path / "data", *LOCAL) as here:
        host, _, port = str(here.traceml).rpartition(":")
        variables = {HOST: host, PORT: port}
        assert states(**variables) == {"traceml tcp": "ok"}
        assert states(**variables | {HOST: "localhost"}) == {
            "traceml dns": "ok", "traceml tcp": "ok"
        }  # fmt: skip
        done = run("doctor", "--no-hooks", "--no-send", env=variables)
        assert f"ok       traceml tcp      {host}:{port} accepts connections" in done.stdout
        assert received(here) == refused(here, "torn") == 0


def test_without_the_variables_nothing_is_checked() -> None:
    assert states() == states(**{HOST: "", PORT: ""}) == {}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the server to answer or to close, however slow the machine."""
    monkeypatch.setattr(traceml, "_CLOSES_WITHIN_S", TIMEOUT_S)


@pytest.mark.usefixtures("patient")
def test_a_receiver_that_this_machine_may_not_use(tmp_path: Path) -> None:
    file = configured(tmp_path, "receivers: {traceml: {allow: [127.0.0.3]}}\n")
    with serving(tmp_path / "data", *LOCAL, *file) as here:
        host, _, port = str(here.traceml).rpartition(":")
        found, advice = problem(**{HOST: host, PORT: port})
        assert found == f"{host}:{port} closes connections at once"
        assert "receivers.traceml.allow" in advice


def test_a_port_without_a_receiver() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    found, advice = problem(**{PORT: port})
    assert found.startswith(f"127.0.0.1:{port} refuses connections")
    assert PORT in advice


@pytest.mark.usefixtures("patient")
def test_another_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(b"220 ready\r\n")
                    connection.recv(1)

        thread = threading.Thread(target=greet)
        thread.start()
        found, _ = problem(**{PORT: str(server.getsockname()[1])})
        thread.join()
    assert "sends data, which a receiver of TraceML's frames does not" in found


@pytest.mark.parametrize("port", ["x", "0", "65536", "-1", "٣", "9" * 50])
def test_a_wrong_port(port: str) -> None:
    found, _ = problem(**{PORT: port})
    assert found.endswith("expected a port from 1 to 65535")


def test_a_job_that_sends_nothing() -> None:
    found, _ = problem(**{HOST: "127.0.0.1", "TRACEML_DISABLED": "1"})
    assert found == "TRACEML_DISABLED is 1: TraceML's processes send nothing"
