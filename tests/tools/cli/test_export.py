"""`export` against a real OTLP/HTTP server on loopback."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.core.spool.delivered import Delivered
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.targets.otlp.config import OtlpConfig, target_key
from cirron_otel.tools.cli.main import run as run_here
from cirron_otel.tools.convert import export as module
from tests.kit.servers.server import OtlpServer
from tests.kit.sessions.processes import until
from tests.kit.spools.following import put
from tests.tools.conftest import (
    COMMAND,
    Run,
    environment,
    one_line,
)


def test_every_span_of_a_spool_is_exported(run: Run, spool: Path, server: OtlpServer) -> None:
    result = run("export", ".cirron", "--json", env=server.environ)
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report["rejected"] == 0
    assert report["spans"] == 173
    ids = server.span_ids()
    assert len(ids) == len(set(ids))
    assert len(ids) >= 173
    assert all(len(each) == 8 and any(each) for each in ids)


_WITH_IDS = {"traceId": "11112222333344445555666677778888", "spanId": "aaaabbbbccccdddd"}
_ODD_IDS: dict[str, tuple[dict[str, object], int]] = {
    "valid": (_WITH_IDS, 0),
    "none": ({}, 1),
    "zero": ({"traceId": "0" * 32, "spanId": "0" * 16}, 1),
    "no trace id": ({"spanId": "aaaabbbbccccdddd"}, 1),
    "no span id": ({"traceId": _WITH_IDS["traceId"]}, 1),
    "a short trace id": ({**_WITH_IDS, "traceId": "1111222233334444"}, 1),
    "a long span id": ({**_WITH_IDS, "spanId": "aaaabbbbccccddddaaaabbbbccccdddd"}, 1),
    "a zero parent": ({**_WITH_IDS, "parentSpanId": "0" * 16}, 1),
    "a link without ids": ({**_WITH_IDS, "links": [{}]}, 1),
}


@pytest.mark.parametrize("kind", _ODD_IDS)
def test_spans_with_derived_ids_are_reported(
    run: Run, server: OtlpServer, tmp_path: Path, kind: str
) -> None:
    ids, derived = _ODD_IDS[kind]
    scopes = [{"spans": [{"name": "n", **ids}]}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"resourceSpans": [{"scopeSpans": scopes}]}))
    result = run("export", str(tmp_path / "a.jsonl"), "--json", env=server.environ)
    assert result.returncode == derived
    assert json.loads(result.stdout)["derived_ids"] == derived
    assert ("1 span sent with derived ids" in result.stderr) == bool(derived)
    (span_id,) = server.span_ids()
    assert len(span_id) == 8
    assert any(span_id)


def test_a_spool_of_spans_without_ids_is_reported(
    run: Run, server: OtlpServer, tmp_path: Path
) -> None:
    spans = {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "n"}, {"name": "n"}]}]}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(spans))
    run("convert", str(tmp_path / "a.jsonl"), str(tmp_path / "spool"))
    result = run("export", str(tmp_path / "spool"), "--json", env=server.environ)
    assert (result.returncode, json.loads(result.stdout)["derived_ids"]) == (1, 2)
    assert len(set(server.span_ids())) == 2


def test_the_numbers_of_spans_add_up(
    run: Run, spool: Path, server: OtlpServer, tmp_path: Path
) -> None:
    many = {"CIRRON_SEGMENT_RECORDS": "20", "CIRRON_OUTPUT_DIR": str(tmp_path / "run")}
    program = (
        "import cirron_otel as ci\nci.profile(frameworks=[])\n"
        "for _ in ci.epochs(range(3)):\n    for _ in ci.batches(range(30)): pass\n"
        "ci.shutdown()"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(**many), check=True)
    report = json.loads(run("export", "run", "--json", env=server.environ).stdout)
    assert report["spans"] == 1 + 3 + 90
    assert report["synthetic"] > 5
    assert report["accepted"] == report["spans"] + report["synthetic"]
    result = run("export", "run", env=server.environ)
    numbers = f"{report['accepted']} spans accepted, 0 rejected"
    assert f"{numbers} (94 recorded, {report['synthetic']} synthetic)\n" in result.stdout
    server.rejected = 3
    result = run("export", "run", env=server.environ)
    assert f"{report['accepted'] - 3} spans accepted, 3 rejected (94 recorded" in result.stdout


def test_a_finished_run_has_no_marker_of_open_scopes(
    run: Run, server: OtlpServer, tmp_path: Path
) -> None:
    program = (
        "import sys, time\nimport cirron_otel as ci\n"
        "ci.profile(frameworks=[], flush_interval=0.05)\n"
        "for _ in ci.epochs(range(2)):\n    for _ in ci.batches(range(5)): time.sleep(0.05)\n"
        "    ci.flush()\n"
        "ci.shutdown()"
    )
    for number, more in enumerate(({}, server.environ)):
        run_dir = {"CIRRON_OUTPUT_DIR": str(tmp_path / f"run{number}")}
        command = [sys.executable, "-c", program]
        subprocess.run(command, env=environment(**run_dir, **more), check=True)
    report = json.loads(run("export", "run0", "--json", env=server.environ).stdout)
    assert (report["spans"], report["synthetic"]) == (13, 0)
    # A run that sends while it records reports its open scopes: the session, and each epoch.
    texts = [path.read_text() for path in (tmp_path / "run1" / "spool").glob("*.json")]
    assert any('"running"' in text for text in texts)


def test_every_span_of_a_file_is_exported(run: Run, spool: Path, server: OtlpServer) -> None:
    assert run("convert", ".cirron", "t.binpb.gz").returncode == 0
    result = run("export", "t.binpb.gz", env=server.environ)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("5 messages, ")
    assert result.stdout.endswith(f": {len(server.span_ids())} spans accepted, 0 rejected\n")
    assert len(server.span_ids()) >= 173


def test_a_partial_success_is_reported(run: Run, spool: Path, server: OtlpServer) -> None:
    server.rejected = 3
    result = run("export", ".cirron", env=server.environ)
    assert result.returncode == 1
    assert "too many spans" in result.stderr


def test_an_endpoint_that_refuses(run: Run, spool: Path, server: OtlpServer) -> None:
    server.status = 400
    assert "400" in one_line(run("export", ".cirron", env=server.environ), 5)


def test_export_fails_in_one_line_if_no_server_listens(
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


def test_follow_resumes_after_the_last_acknowledged_batch(
    run: Run, spool: Path, server: OtlpServer
) -> None:
    """The second one sends the batch that came between them, and nothing twice."""
    key = target_key(OtlpConfig.from_env(server.environ))
    for _ in range(2):
        server.received.clear()
        expected = len(list((spool / "spool").glob("*.json")))
        process = subprocess.Popen(
            [COMMAND, "export", ".cirron", "--follow"],
            cwd=spool.parent,
            env=environment(**server.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.received.wait(120)
        until(lambda: acknowledged(spool, key) == expected)  # noqa: B023
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 130, err
        assert err.splitlines()[-1] == "cirron-otel: interrupted"
        assert "Traceback" not in err
        put(spool, 77)
    ids = server.span_ids()
    assert len(ids) == len(set(ids))


def acknowledged(spool: Path, key: str) -> int:
    return Delivered(SpoolPaths.under(spool), key).acknowledged_count
