"""The demo's other targets: an embedded collector's SQLite file, and the configured endpoint."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.cli.embedded import Embedded, EmbeddedError
from tests.kit.servers.server import OtlpServer
from tests.tools.conftest import (
    COMMAND,
    Run,
    environment,
    one_line,
    same_batches,
)

from .test_demo import python_path

SPANS = 143
"""The number of spans in the recording."""

_WITHOUT_AIOHTTP = """
import importlib.machinery
real = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name == "aiohttp" else real(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""

_BROKEN_COLLECTOR = """
import sys
if sys.argv[1:2] == ["collector"]:
    print("cirron-otel: error: no such luck", file=sys.stderr)
    sys.stderr.flush()
    import os; os._exit(7)
"""


def test_the_collector_stores_every_batch_as_it_was(run: Run, tmp_path: Path) -> None:
    document = json.loads(run("demo", "--replay", "--output", "kept", "--json").stdout)
    found = document["collector"]
    assert (found["spans"], found["reason"]) == (SPANS, None)
    with Storage.open(f"sqlite:///{tmp_path}/{found['database']}", create=False) as storage:
        (tmp_path / "stored").mkdir()
        for name, data in storage.batches():
            (tmp_path / "stored" / name).write_bytes(data)
    assert same_batches(tmp_path / "stored", RECORDING / "spool")


def test_slowest_step_matches_the_records(run: Run) -> None:
    document = json.loads(run("demo", "--replay", "--output", "kept", "--json").stdout)
    steps = [
        span["end_ns"] - span["start_ns"]
        for file in (RECORDING / "spool").iterdir()
        for span in json.loads(file.read_bytes())["spans"]
        if span["name"] == "step"
    ]
    assert document["collector"]["slowest_step"]["durationNs"] == max(steps)
    assert document["endpoint"] is None


def test_without_the_extra_the_demo_reports_it_and_continues(run: Run, tmp_path: Path) -> None:
    hidden = python_path(tmp_path, "sitecustomize.py", _WITHOUT_AIOHTTP)
    result = run("demo", "--replay", "--output", "kept", env=hidden)
    assert (result.returncode, result.stderr) == (0, "")
    assert "SQLite  skipped, because the extra 'collector' is not installed: pip" in result.stdout
    assert "cirron-otel convert kept kept/trace.binpb.zst" in result.stdout
    assert "└── epoch 2" in result.stdout


def test_a_collector_that_does_not_start_is_reported(run: Run, tmp_path: Path) -> None:
    broken = python_path(tmp_path, "sitecustomize.py", _BROKEN_COLLECTOR)
    result = run("demo", "--replay", "--output", "kept", env=broken)
    assert "the collector did not store the run: no such luck" in one_line(result, 1)
    assert "SQLite  skipped, because no such luck" in result.stdout
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == ["spool", "trace.jsonl"]


def test_a_directory_that_no_url_can_name(run: Run) -> None:
    result = run("demo", "--replay", "--output", "what?")
    assert (result.returncode, result.stderr) == (0, "")
    assert "SQLite  skipped, because " in result.stdout


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_no_proxy_is_asked_for_the_way_to_the_collector(run: Run, name: str) -> None:
    settings = {"no_proxy": "", "NO_PROXY": "", name: "http://127.0.0.1:1"}
    result = run("demo", "--replay", "--output", "kept", env=settings)
    assert (result.returncode, result.stderr) == (0, "")
    assert "143 spans through a collector" in result.stdout


def test_it_goes_to_the_endpoint_that_is_set(run: Run, server: OtlpServer) -> None:
    result = run("demo", "--replay", "--output", "kept", env=server.environ)
    assert (result.returncode, result.stderr) == (0, "")
    recorded = [
        span
        for request in server.requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if not span.name.startswith("cirron.marks")
    ]
    assert len(recorded) == SPANS
    (trace,) = server.trace_ids()
    assert f"look for trace {trace})" in result.stdout
    assert f"sent    http://{server.address}/v1/traces  (" in result.stdout


def test_spans_rejected_by_an_endpoint_are_reported(run: Run, server: OtlpServer) -> None:
    server.rejected = 3
    result = run("demo", "--replay", "--output", "kept", env=server.environ)
    assert one_line(result, 1).endswith("the endpoint reports: too many spans")
    assert re.search(r", [1-9] rejected; look for trace ", result.stdout)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1", "refuses connections"),
        ("nonsense", "is not an http:// or https:// URL"),
    ],
)
def test_unreachable_endpoint_is_reported(run: Run, url: str, reason: str) -> None:
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    result = run("demo", "--replay", "--output", "kept", env=settings)
    assert reason in one_line(result, 5)
    assert "sent    NOT: " in result.stdout
    assert "143 spans through a collector" in result.stdout


def alive(process: int) -> bool:
    """Return whether a process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(processes: list[int]) -> None:
    end = time.monotonic() + 180
    while any(map(alive, processes)):
        assert time.monotonic() < end
        time.sleep(0.05)


def children(process: int) -> list[int]:
    """Return all descendants of a process."""
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [each for child in map(int, found) for each in (child, *children(child))]


_HOLDING = """
import sys, time
from pathlib import Path
from cirron_otel.tools.cli.embedded import Embedded
with Embedded(Path(sys.argv[1]), Path(sys.argv[1], "trace.db")) as collector:
    print(collector.endpoint(), flush=True)
    time.sleep(300)
"""


def test_it_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    below = children(process.pid)
    assert len(below) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until_gone(below)
    assert list(tmp_path.glob(".collector-*")) == []


def test_a_collector_that_dies_is_reported(tmp_path: Path) -> None:
    others = set(children(os.getpid()))  # backends, for instance, that other tests have started
    with Embedded(tmp_path, tmp_path / "trace.db") as collector:
        collector.endpoint()
        first = next(each for each in children(os.getpid()) if each not in others)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(EmbeddedError, match="it was ended by SIGKILL"):
            collector.finish()
    assert sorted(path.name for path in tmp_path.glob(".collector-*")) == []


def test_ctrl_c_while_it_is_stored_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while the command's collector runs leaves neither a process nor a file."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [COMMAND, "demo", "--replay"],
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 180
    while not (below := children(process.pid)) and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "cirron-otel: interrupted\n")
    wait_until_gone(below)
    assert list(temporary.iterdir()) == []


def test_the_database_is_a_plain_sqlite_file(run: Run, tmp_path: Path) -> None:
    run("demo", "--replay", "--output", "kept")
    with sqlite3.connect(tmp_path / "kept" / "trace.db") as connection:
        (steps,) = connection.execute('SELECT COUNT(*) FROM "TraceStep"').fetchone()
    assert steps == 15
