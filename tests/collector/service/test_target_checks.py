"""`collector --check` tries directories and targets; `--check=offline` makes no connection."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.collector.service.target_checks import try_targets
from cirron_otel.errors import EndpointError, TargetError
from tests.core.targets.sql.conftest import postgres_server, postgres_url
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.cirron_server import CirronServer
from tests.kit.servers.otlp_sink import otlp_sink
from tests.kit.servers.serving import serving

from .configs import options
from .test_config_command import Run, run

__all__ = ["postgres_server", "postgres_url", "run"]


def tried(folder: Path, **sections: Any) -> list[str]:
    sections.setdefault("spool", {"directory": str(folder / "data")})
    return [str(error) for error in try_targets(options(folder, sections)).errors]


def test_targets_that_answer(tmp_path: Path) -> None:
    """Nothing is stored in them, and no directory is created."""
    (address,) = free_endpoints(1)
    platform = CirronServer()
    config = tmp_path / "receiver.yaml"
    config.write_text("receivers: {auth: {tokens: [t-1]}}\n")
    with (
        otlp_sink(address) as sink,
        platform.running(),
        serving(tmp_path / "receiver", "--config", str(config)) as receiver,
    ):
        token = {"headers": {"authorization": "Bearer t-1"}}
        exporters = [
            {"type": "otlp", "endpoint": f"http://{address}"},
            {"type": "otlp", "endpoint": f"http://{receiver.grpc}", **token},
            {"type": "otlp", "endpoint": receiver.http, "protocol": "http/protobuf", **token},
            {"type": "cirron", "endpoint": platform.url, "api_key": "key-1"},
        ]
        places = {name: {"url": str(tmp_path / name)} for name in ("blobs", "parquet")}
        storage = {"url": f"sqlite:///{tmp_path}/new.db"}
        assert tried(tmp_path, storage=storage, exporters=exporters, **places) == []
        assert not sink.spans
        assert not platform.accepted
    assert {path.name for path in tmp_path.iterdir()} <= {
        "c.yaml", "collector.yaml", "receiver", "receiver.log", "receiver.yaml"
    }  # fmt: skip


def test_each_target_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    config = tmp_path / "receiver.yaml"
    config.write_text("receivers: {auth: {tokens: [t-1]}}\n")
    closed, other = free_endpoints(2)
    (tmp_path / "file").touch()
    with serving(tmp_path / "receiver", "--config", str(config)) as receiver:
        exporters = [
            {"type": "otlp", "endpoint": f"http://{closed}"},
            {"type": "otlp", "endpoint": f"http://{other}", "protocol": "http/protobuf"},
            {"type": "otlp", "endpoint": f"http://{receiver.grpc}"},
            {"type": "otlp", "endpoint": receiver.http, "protocol": "http/protobuf"},
            {"type": "cirron", "endpoint": receiver.http, "api_key": "wrong"},
        ]
        errors, warnings = try_targets(
            options(
                tmp_path,
                {
                    "spool": {"directory": str(tmp_path / "file" / "data")},
                    "storage": {"url": f"postgresql://x@{closed}/x"},
                    "parquet": {"url": str(tmp_path / "file")},
                    "exporters": exporters,
                },
            )
        )
    assert warnings == []
    found = {str(error).partition(": ")[0]: error for error in errors}
    assert list(found) == [
        "spool.directory", "storage.url", "parquet.url", *(f"exporters[{n}]" for n in range(5))
    ]  # fmt: skip
    assert isinstance(found["spool.directory"], TargetError)
    assert isinstance(found["storage.url"], TargetError)
    assert "is not a directory" in str(found["spool.directory"])
    assert all(isinstance(found[f"exporters[{n}]"], EndpointError) for n in range(5))
    for number, text in enumerate(["UNAVAILABLE", "no answer", "UNAUTHENTICATED", "401", "401"]):
        assert text in str(found[f"exporters[{number}]"])


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_endpoint_that_requires_a_forwarded_header_is_a_warning(
    tmp_path: Path, run: Run, protocol: str
) -> None:
    """The check has no request whose headers it could forward."""
    config = tmp_path / "receiver.yaml"
    config.write_text("receivers: {auth: {tokens: [t-1]}}\n")
    with serving(tmp_path / "receiver", "--config", str(config)) as receiver:
        endpoint = f"http://{receiver.grpc}" if protocol == "grpc" else receiver.http
        exporter = {"type": "otlp", "endpoint": endpoint, "protocol": protocol}
        forwarding = {**exporter, "headers_from": ["x-scope-orgid"]}
        sections = {
            "spool": {"directory": str(tmp_path / "data")},
            "receivers": {"headers": {"pass": ["x-scope-orgid"]}},
        }
        errors, (warning,) = try_targets(options(tmp_path, {**sections, "exporters": [forwarding]}))
        assert errors == []
        assert "without x-scope-orgid: whether it accepts requests with them" in warning
        file = tmp_path / "forwarding.yaml"
        file.write_text(json.dumps({**sections, "exporters": [forwarding]}))
        done = run("--config", str(file), "--check", "--json")
        assert (done.returncode, json.loads(done.stdout)["warnings"]) == (0, [warning])
        assert tried(tmp_path, exporters=[exporter])


def test_database_of_postgresql(postgres_url: str, tmp_path: Path) -> None:
    assert tried(tmp_path, storage={"url": postgres_url}) == []
    (problem,) = tried(tmp_path, storage={"url": f"{postgres_url}_missing"})
    assert "does not exist" in problem


def test_endpoint_that_sends_nothing_takes_limited_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        exporter = {"type": "cirron", "endpoint": endpoint, "api_key": "k", "timeout_s": 300}
        spool = {"directory": str(tmp_path / "data")}
        configured = options(tmp_path, {"spool": spool, "exporters": [exporter]})
        ((error,), _) = try_targets(configured, longest_s=0.3)
    assert str(error) == "exporters[0]: no answer within 0.3 s"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directory_of_another_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    (problem,) = tried(tmp_path)
    tmp_path.chmod(0o700)
    assert "cannot be written by this user" in problem


def test_command_reports_a_line_for_each_problem(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (closed,) = free_endpoints(1)
    arguments = "--spool", "file/data", "--storage", f"postgresql://x@{closed}/x"
    done = run(*arguments, "--check")
    assert (done.returncode, done.stdout) == (4, "")
    first, second = done.stderr.splitlines()
    assert first.startswith("cirron-otel: error: spool.directory: ")
    assert second.startswith("cirron-otel: error: storage.url: ")
    assert run("--spool", "file/data", "--check").returncode == 4
    offline = run(*arguments, "--check=offline", "--json")
    assert (offline.returncode, json.loads(offline.stdout)["warnings"]) == (0, [])
