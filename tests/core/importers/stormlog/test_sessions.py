"""Sessions: their status, the default one, and synthetic ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.importers.stormlog import load_telemetry_events, load_telemetry_sessions
from cirron_otel.core.importers.stormlog.strict import verify_recording
from cirron_otel.errors import InputError

from .conftest import (
    ANSWERS,
    EVENTS,
    RECORDINGS,
    SEGMENT,
    SIMULATED,
)

EVENT = json.loads(EVENTS[10])


def event(session: str, time: int, kind: str = "sample", **more: Any) -> dict[str, Any]:
    return {**EVENT, "session_id": session, "timestamp_ns": time, "event_type": kind, **more}


def export(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps(events))
    return path


def manifest_session(name: str, status: str, start: int = 1, end: int | None = 2) -> dict[str, Any]:
    return {
        "session_id": name, "status": status, "started_at_ns": start, "ended_at_ns": end,
        "host": "h", "pid": 1, "job_id": None, "rank": 0, "local_rank": 0, "world_size": 1,
        "source": "stormlog.tracker",
    }  # fmt: skip


def sink(path: Path, sessions: list[dict[str, Any]], *events: dict[str, Any]) -> Path:
    path.mkdir()
    (path / SEGMENT).write_text("".join(json.dumps(each) + "\n" for each in events))
    (path / "manifest.json").write_text(json.dumps({"schema_version": 2, "sessions": sessions}))
    return path


def statuses(path: Path) -> dict[str, str]:
    return {each.summary.session_id: each.summary.status for each in load_telemetry_sessions(path)}


@pytest.mark.parametrize("name", ["sim_gpu/sink", "cli_track/sink", "cli_track/track.json"])
def test_the_recorded_answers(name: str) -> None:
    expected = json.loads((ANSWERS / "sessions.json").read_text())[name]
    loaded = load_telemetry_sessions(RECORDINGS / "v039" / name)
    assert [each.summary.to_json() for each in loaded] == [
        each["summary"] for each in expected["sessions"]
    ]
    assert [len(each.events) for each in loaded] == [
        each["event_count"] for each in expected["sessions"]
    ]


def test_a_session_without_a_manifest_or_a_stop_event_is_incomplete(tmp_path: Path) -> None:
    path = export(tmp_path / "a.json", event("A", 1, "start"), event("A", 2, "stop"), event("B", 3))
    assert statuses(path) == {"A": "completed", "B": "incomplete"}


@pytest.mark.parametrize("status", ["running", "completed", "interrupted", "incomplete"])
def test_session_status_is_read_from_the_manifest(tmp_path: Path, status: str) -> None:
    path = sink(tmp_path / "sink", [manifest_session("A", status)], event("A", 1, "stop"))
    assert statuses(path) == {"A": status}


def test_a_killed_run_stays_running_and_its_sink_unchanged(tmp_path: Path) -> None:
    path = sink(tmp_path / "sink", [manifest_session("A", "running", end=None)], event("A", 1))
    before = (path / "manifest.json").read_bytes()
    assert statuses(path) == {"A": "running"}
    assert (path / "manifest.json").read_bytes() == before


def default(path: Path) -> str:
    return load_telemetry_events(path)[0].session_id


def test_the_default_is_the_newest_completed_then_interrupted_then_incomplete(
    tmp_path: Path,
) -> None:
    sessions = [
        manifest_session("old", "completed", 1, 2), manifest_session("new", "completed", 3, 4),
        manifest_session("cut", "interrupted", 5, 6), manifest_session("odd", "incomplete", 7, 8),
        manifest_session("live", "running", 9, None),
    ]  # fmt: skip
    events = [event(each["session_id"], 1) for each in sessions]
    order = []
    for number in range(5):
        path = sink(tmp_path / str(number), sessions, *events)
        order.append(default(path))
        sessions = [each for each in sessions if each["session_id"] != order[-1]]
        events = [each for each in events if each["session_id"] != order[-1]]
    assert order == ["new", "old", "cut", "odd", "live"]


def test_sessions_with_events_are_preferred(tmp_path: Path) -> None:
    sessions = [manifest_session("empty", "completed"), manifest_session("A", "running", end=None)]
    path = sink(tmp_path / "sink", sessions, event("A", 1))
    assert list(statuses(path)) == ["empty", "A"]
    assert default(path) == "A"


def test_a_requested_session(tmp_path: Path) -> None:
    path = export(tmp_path / "a.json", event("A", 2), event("B", 1), event("B", 0))
    times = [each.timestamp_ns for each in load_telemetry_events(path, session_id="B")]
    assert times == [0, 1]
    with pytest.raises(InputError, match="has no session 'C'"):
        load_telemetry_events(path, session_id="C")


def test_an_invalid_session_of_a_manifest_is_not_used(tmp_path: Path) -> None:
    broken = {**manifest_session("A", "completed"), "started_at_ns": "5"}
    path = sink(tmp_path / "sink", [broken], event("A", 1))
    assert statuses(path) == {"A": "incomplete"}
    findings = [(each.code, each.path) for each in verify_recording(path)]
    assert findings == [("manifest-session", "$.sessions[0]")]


def test_the_sink_has_the_last_word_on_the_session_of_a_bundle() -> None:
    bundle = next((SIMULATED / "oom_dumps").iterdir())
    assert set(statuses(bundle).values()) == {"running"}
    assert set(statuses(SIMULATED).values()) == {"completed"}


def test_a_synthetic_session_id_depends_on_the_content_only(tmp_path: Path) -> None:
    source = RECORDINGS / "v039" / "v2_records.json"
    copy = shutil.copy(source, tmp_path / "other.json")
    (first,) = statuses(source)
    assert first.startswith("legacy-")
    assert list(statuses(Path(copy))) == [first]
    Path(copy).write_text(source.read_text().replace("18406", "18407"))
    assert list(statuses(Path(copy))) != [first]
    shutil.copy(source, tmp_path / "again.json")
    assert len(statuses(tmp_path)) == 2


def test_records_without_a_session_get_the_session_of_their_segment(tmp_path: Path) -> None:
    path = sink(tmp_path / "sink", [manifest_session("A", "completed")])
    (path / SEGMENT).write_text('{"timestamp": 1.5}\n')
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["segments"] = [{"filename": SEGMENT, "session_id": "A"}]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert [each.session_id for each in load_telemetry_events(path)] == ["A"]


def test_an_array_under_another_key(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"tracked": [event("A", 1)], "events": []}))
    assert len(load_telemetry_events(path, events_key="tracked")) == 1


@pytest.mark.parametrize("key", ["events", "telemetry_events"])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_array_of_an_export_may_have_either_key(
    tmp_path: Path, key: str, is_first: bool
) -> None:
    path = tmp_path / "a.json"
    array = {key: [event("A", 1), event("A", 2)]}
    more = {"peak_memory": 1.5, "counts": {"telemetry_events": 2}}
    path.write_text(json.dumps({**array, **more} if is_first else {**more, **array}))
    assert len(load_telemetry_events(path)) == 2
    assert len(load_telemetry_events(tmp_path)) == 2


def test_the_first_key_that_has_an_array_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"telemetry_events": [], "events": [event("A", 1)]}))
    assert len(load_telemetry_events(path)) == 1
    path.write_text(json.dumps({"events": 5, "telemetry_events": [event("A", 1)]}))
    assert len(load_telemetry_events(path)) == 1


def test_the_summary_beside_telemetry_events_describes_their_session(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    summary = manifest_session("A", "interrupted")
    path.write_text(json.dumps({"session_summary": summary, "telemetry_events": [event("A", 1)]}))
    assert statuses(path) == {"A": "interrupted"}
    path.write_text(json.dumps({"session_summary": 5, "telemetry_events": [event("A", 1)]}))
    assert statuses(path) == {"A": "incomplete"}


@pytest.mark.parametrize("version", [1, 5, 99])
def test_a_file_of_another_schema_is_an_error_that_names_it(tmp_path: Path, version: int) -> None:
    path = export(tmp_path / "a.json", {**event("A", 1), "schema_version": version})
    with pytest.raises(ValueError, match=f"schema_version {version} is not supported") as caught:
        load_telemetry_sessions(path)
    assert ("update cirron-otel" in str(caught.value)) == (version > 4)


def test_skipped_line_becomes_a_warning(tmp_path: Path) -> None:
    path = tmp_path / SEGMENT
    path.write_text(f"{json.dumps(event('A', 1))}\nbroken\n")
    (session,) = load_telemetry_sessions(path)
    assert len(session.events) == 1
    assert len(session.warnings) == 1
    assert "line 2" in session.warnings[0]
