"""Runs that are older than Tempo's ingestion slack, in the real Tempo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
import yaml

from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.tools.cli.main import run as run_here
from cirron_otel.tools.doctor.check import CheckState
from cirron_otel.tools.doctor.endpoints import examine_search
from cirron_otel.tools.query import ingestion_slack
from cirron_otel.tools.query.ingestion_slack import IngestionSlack, find_slack, slack_in
from tests.kit.backends import tempo as tempo_backend
from tests.kit.backends.process import free_endpoints, get
from tests.kit.backends.tempo import TEMPO, Tempo
from tests.kit.servers.server import OtlpServer
from tests.tools.conftest import environment

AGE_S = 3 * 86_400
PROGRAM = f"""
import time
now = time.time_ns
time.time_ns = lambda: now() - {AGE_S} * 10**9
import cirron_otel as ci
ci.profile(frameworks=[])
for _ in ci.batches(range(5)): pass
ci.shutdown()
"""
HINT = (
    "cirron-otel: the oldest batch sent is 3 days old, and 127.0.0.1:{port}, a Tempo, indexes spans"
    " up to 2 minutes old (ingestion_time_range_slack): its search does not find older ones, only"
    ' their trace ids do; docs/backends.md, "Old runs in Tempo", describes a remedy'
)


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was recorded three days ago, by its timestamps."""
    directory = tmp_path_factory.mktemp("old") / "run"
    variables = environment(CIRRON_OUTPUT_DIR=str(directory))
    subprocess.run([sys.executable, "-c", PROGRAM], env=variables, check=True)
    return directory


@pytest.fixture(params=["default", "raised"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Tempo, bool]]:
    """Tempo by default, or with the setting of docs/backends.md; and whether it has that."""
    text = TEMPO.read_text()
    is_raised = request.param == "raised"
    if is_raised:
        page = (Path(__file__).parents[3] / "docs" / "backends.md").read_text()
        block = page.partition("## Old runs in Tempo")[2].partition("```yaml\n")[2]
        setting = yaml.safe_load(block.partition("```")[0])["storage"]["trace"]["wal"]
        [(name, value)] = setting.items()
        text = text.replace("wal: {path:", f"wal: {{{name}: {value}, path:")
    with tempo_backend.tempo(tmp_path, text) as running:
        yield running, is_raised


def found(tempo: Tempo, start_s: int, end_s: int) -> int:
    """Return the number of traces that a search of that time range finds."""
    asked = urlencode({"q": '{ name = "step" }', "start": start_s, "end": end_s})
    status, body = get(f"{tempo.query}/api/search?{asked}")
    assert status == 200
    return len(json.loads(body).get("traces", []))


@pytest.mark.backends
def test_tempo_slack_warning_for_old_runs_matches_the_documentation(
    old_run: Path,
    backend: tuple[Tempo, bool],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tempo, is_raised = backend
    port = urlsplit(tempo.query).port
    monkeypatch.setattr(ingestion_slack, "QUERY_PORT", port)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{tempo.otlp_grpc}")
    [check] = examine_search(old_run, os.environ)
    assert check.state == (CheckState.OK if is_raised else CheckState.WARNING)
    assert ("unsent batches are up to 3 days old" in check.found) is not is_raised
    assert run_here(["export", str(old_run)]) == 0
    assert run_here(["export", str(old_run), "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines() == ([] if is_raised else [HINT.format(port=port)] * 2)
    assert bool(json.loads(shown.out.splitlines()[-1])["hint"]) is not is_raised
    [batch] = [json.loads(path.read_bytes()) for path in old_run.glob("spool/*.json")]
    assert len(tempo.wait_for_trace(batch["otel"]["session"], 6)) >= 6
    tempo.flush()
    run_s, now_s = batch["created_ns"] // 10**9, int(time.time())
    deadline = time.monotonic() + (180 if is_raised else 3)
    while not found(tempo, run_s - 60, now_s + 60) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert found(tempo, run_s - 60, run_s + 60) == found(tempo, run_s - 60, now_s + 60) == is_raised
    assert found(tempo, now_s - 600, now_s + 60) == 0
    warnings = tempo.metric("tempo_warnings_total", 'reason="outside_ingestion_time_slack"')
    assert bool(warnings) is not is_raised


def test_export_of_a_recent_run_does_not_query_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: OtlpConfig) -> None:
        raise AssertionError("nothing is old here")

    monkeypatch.setattr("cirron_otel.tools.convert.export.find_slack", fail)
    code = PROGRAM.replace(f"- {AGE_S} * 10**9", "")
    variables = environment(CIRRON_OUTPUT_DIR=str(tmp_path / "run"), CIRRON_EXPORTERS="none")
    subprocess.run([sys.executable, "-c", code], env=variables, check=True)
    with OtlpServer() as server:
        for name, value in server.environ.items():
            monkeypatch.setenv(name, value)
        assert run_here(["export", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    ("endpoint", "protocol", "host"),
    [
        ("http://tempo.example:4318/v1/traces", OtlpProtocol.HTTP_PROTOBUF, "tempo.example"),
        ("tempo:4317", OtlpProtocol.GRPC, "tempo"),
        ("dns:///tempo:4317", OtlpProtocol.GRPC, "tempo"),
        ("[::1]:4317", OtlpProtocol.GRPC, "::1"),
        ("unix:/run/otlp.sock", OtlpProtocol.GRPC, None),
        ("http://[broken/v1/traces", OtlpProtocol.HTTP_PROTOBUF, None),
    ],
)
def test_the_host_of_the_endpoint_is_asked(
    endpoint: str, protocol: OtlpProtocol, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(ingestion_slack, "_configured", asked.append)
    assert find_slack(OtlpConfig(protocol, endpoint)) is None
    assert asked == ([] if host is None else [host])


def test_grafana_cloud_is_known_by_its_name() -> None:
    cloud = OtlpConfig(
        OtlpProtocol.HTTP_PROTOBUF, "https://otlp-gateway-prod.grafana.net/otlp/v1/traces"
    )
    slack = find_slack(cloud)
    assert slack == IngestionSlack("otlp-gateway-prod.grafana.net", 120.0, is_read=False)
    assert slack.problem(119) == ""
    assert "3 hours old" in slack.problem(3 * 3600)
    assert "up to 2 minutes old by default" in slack.problem(3 * 3600)


def test_nothing_is_there_or_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    [endpoint] = free_endpoints(1)
    monkeypatch.setattr(ingestion_slack, "QUERY_PORT", int(endpoint.rpartition(":")[2]))
    assert find_slack(OtlpConfig(OtlpProtocol.GRPC, "127.0.0.1:4317")) is None
    assert list(examine_search(Path("nowhere"), {})) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("storage:\n  trace:\n    wal:\n      ingestion_time_range_slack: 1h2m3.5s\n", 3723.5),
        ("storage:\n  trace:\n    wal:\n      ingestion_time_range_slack: 150ms\n", 0.15),
        ("other:\n  trace:\n    wal:\n      ingestion_time_range_slack: 1h\n", None),
        ("storage:\n  trace:\n    wal:\n      ingestion_time_range_slack: soon\n", None),
        (
            "storage:\n  trace:\n    block:\n      x: 1\nwal:\n  ingestion_time_range_slack: 1h",
            None,
        ),
        ("<html><body>another server</body></html>", None),
        ("", None),
    ],
)
def test_the_configuration_is_read(text: str, seconds: float | None) -> None:
    assert slack_in(text) == seconds
