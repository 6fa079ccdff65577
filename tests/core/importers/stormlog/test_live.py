"""Recordings that both real releases make during the test: complete, killed, and recovered."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from cirron_otel.core.importers.stormlog import load_telemetry_sessions
from cirron_otel.core.importers.stormlog.strict import verify_recording
from tests.kit.environments import run_in

from .peers import STORMLOG, Peer
from .test_peers import check_sessions, check_timeline

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "record_session.py"


def record(peer: Peer, sink: Path, steps: int = 10) -> None:
    done = run_in(STORMLOG[f"stormlog-{peer.version}"], [PROGRAM, sink, str(steps)])
    assert done.returncode == 0, done.stderr


def record_and_kill(peer: Peer, sink: Path) -> None:
    python = STORMLOG[f"stormlog-{peer.version}"].python
    command = [python, PROGRAM, sink, "3", "forever"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)


def check(peer: Peer, sink: Path) -> list[str]:
    """Compare with the peer's answers, and return the statuses."""
    loaded = check_sessions(peer, sink)
    check_timeline(peer, sink, loaded)
    assert [str(each) for each in verify_recording(sink) if each.severity == "error"] == []
    return [each.summary.status for each in loaded]


def test_a_complete_session(peer: Peer, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    record(peer, sink)
    assert len(list(sink.glob("segment-*.jsonl"))) > 1
    assert check(peer, sink) == ["completed"]


def test_a_killed_session_and_its_recovery(peer: Peer, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    record_and_kill(peer, sink)
    assert check(peer, sink) == ["running"]
    (killed,) = load_telemetry_sessions(sink)
    record(peer, sink)
    assert check(peer, sink) == ["completed", "interrupted"]
    assert load_telemetry_sessions(sink)[1].summary.session_id == killed.summary.session_id


def test_a_killed_session_with_a_torn_line(peer: Peer, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    record_and_kill(peer, sink)
    last = max(path for path in sink.glob("segment-*.jsonl") if path.stat().st_size)
    content = last.read_bytes()
    last.write_bytes(content[:-40])
    assert check(peer, sink) == ["running"]


def test_the_export_of_the_command(peer: Peer, tmp_path: Path) -> None:
    command = STORMLOG[f"stormlog-{peer.version}"].home / "bin" / "gpumemprof"
    export = tmp_path / "track.json"
    arguments = ["track", "--duration", "1", "--interval", "0.1", "--format", "json"]
    done = subprocess.run(
        [command, *arguments, "--output", export, "--telemetry-sink-dir", tmp_path / "sink"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert check(peer, export) == ["completed"]
    assert check(peer, tmp_path / "sink") == ["completed"]
    (both,) = load_telemetry_sessions(tmp_path)
    assert len(both.events) == len(json.loads(export.read_text()))


def test_a_diagnose_bundle(peer: Peer, tmp_path: Path) -> None:
    command = STORMLOG[f"stormlog-{peer.version}"].home / "bin" / "gpumemprof"
    bundle = tmp_path / "bundle"
    arguments = ["diagnose", "--duration", "1", "--interval", "0.2", "--output", bundle]
    done = subprocess.run(
        [command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = json.loads((bundle / "manifest.json").read_text())
    (session,) = load_telemetry_sessions(bundle)
    assert session.summary.to_json() == manifest["session"]
    columns = json.loads((bundle / "telemetry_timeline.json").read_text())
    assert [event.allocator_allocated_bytes for event in session.events] == columns["allocated"]
    assert not list(verify_recording(bundle))
