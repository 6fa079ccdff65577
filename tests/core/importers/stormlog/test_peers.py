"""Sessions, timelines, validation and legacy conversion answer as both real releases do.

The differences that docs/stormlog.md lists are the only ones.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.importers.stormlog import (
    LoadedTelemetrySession,
    TelemetryEvent,
    derive_session_timeline_markers,
    load_telemetry_events,
    load_telemetry_sessions,
    telemetry_event_from_record,
    telemetry_event_to_dict,
    timeline_marker_to_dict,
    validate_telemetry_record,
)
from cirron_otel.core.importers.stormlog.reading import StormlogReader
from cirron_otel.core.importers.stormlog.replay import attribute_all, replay
from cirron_otel.core.importers.stormlog.session_timelines import session_timelines

from . import captures
from .conftest import RECORDINGS
from .peers import Peer

pytestmark = pytest.mark.slow

CAPTURES = 240
RECORDS = 1500
FILES = ("cli_track/sink", "cli_track/track.json", "sim_gpu/sink", "legacy_records.json",
         "v2_records.json", "sim_gpu/sink/segment-000001.jsonl")  # fmt: skip
SCHEMAS = {"0.3.9": 3, "0.4.3": 4}
"""The newest schema of each release."""


def failure_or(call: Callable[[], Any]) -> Any:
    """Return the value, or a string that begins with `error: ` as the peer's answers do."""
    try:
        return call()
    except ValueError as error:
        return f"error: {error}"


def failed(answer: Any) -> bool:
    return isinstance(answer, str) and answer.startswith("error: ")


def comparable(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event without the intended differences.

    0.4.3 turns each event into schema 4, and adds capabilities. Synthetic session ids are derived
    from the content, not from the path.
    """
    session = event["session_id"]
    metadata = {key: value for key, value in event["metadata"].items()
                if key != "memory_capabilities"}  # fmt: skip
    return {
        **event,
        "schema_version": 0,
        "session_id": "legacy" if session.startswith("legacy-") else session,
        "metadata": metadata,
    }


def is_intended(record: dict[str, Any], version: str) -> bool:
    """Return whether docs/stormlog.md lists a difference in loading this record."""
    session = record.get("session_id")
    has_session = isinstance(session, str) and bool(session.strip())
    if record.get("schema_version") in (3, 4) and not has_session:
        return True  # only legacy records and schema 2 may lack the session
    if record.get("schema_version") == 2 and "session_id" in record:
        return version == "0.4.3"
    metadata = record.get("metadata")
    if version == "0.4.3" and isinstance(metadata, dict) and "memory_capabilities" in metadata:
        return True  # 0.4.3 applies a rule of schema 4 to records of other versions
    texts = [value for value in record.values() if isinstance(value, str)]
    return any("\ud800" in text for text in texts)  # 0.4.3 raises UnicodeEncodeError


@pytest.mark.parametrize("seed", range(4))
def test_single_records(peer: Peer, seed: int) -> None:
    draw = random.Random(seed)
    valid = invalid = intended = 0
    for _ in range(RECORDS // 4):
        for record in (
            captures.legacy_record(draw),
            captures.odd_record(draw, SCHEMAS[peer.version]),
            captures.odd_record(draw, 2),
            captures.odd_record(draw, 3),
        ):
            mine = failure_or(lambda: telemetry_event_to_dict(telemetry_event_from_record(record)))  # noqa: B023
            theirs = peer.ask("event", record)
            if failed(mine) != failed(theirs):
                assert is_intended(record, peer.version), (record, mine, theirs)
                intended += 1
            elif failed(mine):
                invalid += 1
            else:
                assert comparable(mine) == comparable(theirs), record
                valid += 1
            strict = failure_or(lambda: validate_telemetry_record(record))  # noqa: B023
            assert failed(strict) == failed(peer.ask("verify", record)), (record, strict)
    assert valid > 100
    assert invalid > 100
    assert intended < (valid + invalid) / 20


def summaries(loaded: list[LoadedTelemetrySession]) -> list[dict[str, Any]]:
    return [
        {
            **each.summary.to_json(),
            "event_count": len(each.events),
            "events": [comparable(telemetry_event_to_dict(event)) for event in each.events],
        }
        for each in loaded
    ]


def without_synthetic(sessions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**each, "session_id": "legacy" if each["session_id"].startswith("legacy-") else
         each["session_id"]}
        for each in sessions
    ]  # fmt: skip


def check_sessions(peer: Peer, path: Path) -> list[LoadedTelemetrySession]:
    """Compare the sessions, their order, the default one, and their events."""
    loaded = load_telemetry_sessions(path)
    theirs = peer.ask("sessions", str(path))
    assert not failed(theirs), theirs
    expected = [
        {**{key: value for key, value in each.items() if key != "event_types"},
         "events": [comparable(event) for event in each["events"]]}
        for each in theirs["sessions"]
    ]  # fmt: skip
    assert without_synthetic(summaries(loaded)) == without_synthetic(expected)
    default = load_telemetry_events(path)
    times = [event.timestamp_ns for event in default]
    assert times == peer.ask("default_events", str(path))
    return loaded


def comparable_markers(markers: list[dict[str, Any]]) -> list[Any]:
    """Return markers without the intended differences.

    Phases that are equal in start, end, rank and label have an arbitrary order in Stormlog.
    """
    result = []
    for each in markers:
        metadata = {key: value for key, value in each["metadata"].items()
                    if key != "memory_capabilities"}  # fmt: skip
        result.append({**each, "metadata": metadata})
    tied = itertools.groupby(
        result, key=lambda m: (m["start_ns"], m["end_ns"], m["rank"], m["kind"], m["label"])
    )
    return [sorted(map(repr, group)) for _, group in tied]


def check_timeline(peer: Peer, path: Path, loaded: list[LoadedTelemetrySession]) -> None:
    """Compare markers, phases and the attribution of every event."""
    theirs = peer.ask("timeline", str(path))
    for session, expected in zip(loaded, theirs, strict=True):
        markers = [timeline_marker_to_dict(each)
                   for each in derive_session_timeline_markers(session)]  # fmt: skip
        legacy = session.summary.session_id.startswith("legacy-")
        if not legacy:
            assert comparable_markers(markers) == comparable_markers(expected["markers"])
        events = [telemetry_event_to_dict(event) for event in session.events]
        phases = [[p.rank, p.scope_id, p.start_ns, p.end_ns, p.synthetic_end]
                  for p in replay(events)]  # fmt: skip
        assert sorted(phases) == sorted(expected["spans"])
        assert attributions(events) == [each["phase_attribution"]
                                        for each in expected["attribution"]]  # fmt: skip


def attributions(events: list[dict[str, Any]]) -> list[Any]:
    found = {id(event): attribution for event, attribution in attribute_all(events)}
    return [None if (each := found[id(event)]) is None else each.to_json() for event in events]


@pytest.mark.parametrize("seed", range(3))
def test_generated_captures(peer: Peer, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    phases = 0
    for number in range(CAPTURES // 3):
        records = captures.capture(draw, SCHEMAS[peer.version])
        if number % 2:
            path = captures.write_sink(tmp_path / str(number), records, draw)
        else:
            path = captures.write_array(tmp_path / f"{number}.json", records, draw)
        loaded = check_sessions(peer, path)
        check_timeline(peer, path, loaded)
        phases += len(replay([telemetry_event_to_dict(e) for s in loaded for e in s.events]))
    assert phases > CAPTURES // 3


@pytest.mark.parametrize("name", FILES)
def test_recordings(peer: Peer, name: str) -> None:
    path = RECORDINGS / "v039" / name
    check_timeline(peer, path, check_sessions(peer, path))


@pytest.mark.parametrize("rank", [0, 1])
def test_recordings_of_schema_4(peer: Peer, rank: int) -> None:
    path = RECORDINGS / "v043" / "distributed" / f"sink_rank{rank}"
    if peer.version == "0.3.9":
        assert failed(peer.ask("sessions", str(path)))
        assert {event.schema_version for event in load_telemetry_events(path)} == {4}
    else:
        check_timeline(peer, path, check_sessions(peer, path))


def test_the_command_has_the_same_timeline(peer: Peer, tmp_path: Path) -> None:
    draw = random.Random(99)
    for number in range(60):
        records = captures.capture(draw, SCHEMAS[peer.version])
        path = captures.write_sink(tmp_path / str(number), records, draw)
        reader = StormlogReader(path, on_finding=lambda _: None)
        mine = [each.to_json() for each in session_timelines(reader, None)]
        for session, expected in zip(mine, peer.ask("timeline", str(path)), strict=True):
            assert session["session_id"] == expected["session_id"]
            assert comparable_markers(session["markers"]) == comparable_markers(expected["markers"])
            assert session["attribution"] == [
                each for each in expected["attribution"]
                if each["event_type"] in ("sample", "warning", "critical", "error")
            ]  # fmt: skip


def test_event_has_the_same_fields_as_stormlogs(peer: Peer) -> None:
    event = telemetry_event_from_record({"timestamp": 1.5})
    assert isinstance(event, TelemetryEvent)
    assert list(telemetry_event_to_dict(event)) == list(peer.ask("event", {"timestamp": 1.5}))
