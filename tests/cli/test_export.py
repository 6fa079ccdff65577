"""`export` against a real OTLP/HTTP server on loopback."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from cirron_otel.cli.main import run as run_here
from cirron_otel.pipeline import export as module
from tests.cli.conftest import COMMAND, Run, environment, one_line
from tests.cli.server import OtlpServer


def test_a_spool_arrives_whole(run: Run, spool: Path, server: OtlpServer) -> None:
    result = run("export", ".cirron", "--json", env=server.environ)
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report["rejected"] == 0
    assert report["spans"] == 173
    ids = server.span_ids()
    assert len(ids) == len(set(ids))
    assert len(ids) >= 173
    assert all(len(each) == 8 and any(each) for each in ids)


def test_a_file_arrives_whole(run: Run, spool: Path, server: OtlpServer) -> None:
    assert run("convert", ".cirron", "t.binpb.gz").returncode == 0
    result = run("export", "t.binpb.gz", env=server.environ)
    assert (result.returncode, result.stderr) == (0, "")
    assert "0 rejected" in result.stdout
    assert len(server.span_ids()) >= 173


def test_a_partial_success_is_reported(run: Run, spool: Path, server: OtlpServer) -> None:
    server.rejected = 3
    result = run("export", ".cirron", env=server.environ)
    assert result.returncode == 1
    assert "too many spans" in result.stderr


def test_an_endpoint_that_refuses(run: Run, spool: Path, server: OtlpServer) -> None:
    server.status = 400
    assert "400" in one_line(run("export", ".cirron", env=server.environ), 5)


def test_nobody_listens(
    spool: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.5)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        assert run_here(["export", str(spool)]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert str(port) in err


def test_wrong_configuration(run: Run, spool: Path) -> None:
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}
    assert "carrier-pigeon" in one_line(run("export", ".cirron", env=environ), 2)


def test_no_spool(run: Run, tmp_path: Path, server: OtlpServer) -> None:
    assert "missing" in one_line(run("export", "missing", env=server.environ), 3)
    assert server.requests == []


def test_follow_goes_on_where_it_stopped(run: Run, spool: Path, server: OtlpServer) -> None:
    for expected in (True, False):
        server.received.clear()
        process = subprocess.Popen(
            [COMMAND, "export", ".cirron", "--follow"],
            cwd=spool.parent,
            env=environment(**server.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.received.wait(60 if expected else 3) is expected
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert err.splitlines()[-1] == "cirron-otel: interrupted"
        assert "Traceback" not in err
