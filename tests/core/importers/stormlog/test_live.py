"""Recordings of both real releases: complete, killed, recovered, and those of the commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cirron_otel.core.importers.stormlog import load_telemetry_sessions
from cirron_otel.core.importers.stormlog.strict import verify_recording

from .peers import Peer
from .real_recordings import record_sessions
from .test_peers import check_sessions, check_timeline

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sessions(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings of a release by name."""
    return record_sessions(peer.version, tmp_path_factory.mktemp("sessions") / "all")


def check(peer: Peer, sink: Path) -> list[str]:
    """Compare with the peer's answers, and return the statuses."""
    loaded = check_sessions(peer, sink)
    check_timeline(peer, sink, loaded)
    assert [str(each) for each in verify_recording(sink) if each.severity == "error"] == []
    return [each.summary.status for each in loaded]


def test_a_complete_session(peer: Peer, sessions: Path) -> None:
    sink = sessions / "complete"
    assert len(list(sink.glob("segment-*.jsonl"))) > 1
    assert check(peer, sink) == ["completed"]


def test_a_killed_session_and_its_recovery(peer: Peer, sessions: Path) -> None:
    assert check(peer, sessions / "killed") == ["running"]
    (killed,) = load_telemetry_sessions(sessions / "killed")
    sink = sessions / "recovered"
    assert check(peer, sink) == ["completed", "interrupted"]
    assert load_telemetry_sessions(sink)[1].summary.session_id == killed.summary.session_id


def test_a_killed_session_with_a_torn_line(peer: Peer, sessions: Path, tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    shutil.copytree(sessions / "killed", sink)
    last = max(path for path in sink.glob("segment-*.jsonl") if path.stat().st_size)
    content = last.read_bytes()
    last.write_bytes(content[:-40])
    assert check(peer, sink) == ["running"]


def test_the_export_of_the_command(peer: Peer, sessions: Path) -> None:
    folder = sessions / "export"
    export = folder / "track.json"
    assert check(peer, export) == ["completed"]
    assert check(peer, folder / "sink") == ["completed"]
    (both,) = load_telemetry_sessions(folder)
    assert len(both.events) == len(json.loads(export.read_text()))


def test_a_diagnose_bundle(sessions: Path) -> None:
    bundle = sessions / "bundle"
    manifest = json.loads((bundle / "manifest.json").read_text())
    (session,) = load_telemetry_sessions(bundle)
    assert session.summary.to_json() == manifest["session"]
    columns = json.loads((bundle / "telemetry_timeline.json").read_text())
    assert [event.allocator_allocated_bytes for event in session.events] == columns["allocated"]
    assert not list(verify_recording(bundle))
