"""Phases, the attribution of events, and markers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from cirron_otel.core.importers.stormlog import (
    derive_session_timeline_markers,
    derive_timeline_markers,
    load_telemetry_events,
    load_telemetry_sessions,
    telemetry_event_from_record,
    timeline_marker_to_dict,
)
from cirron_otel.core.importers.stormlog.markers import annotation_marker, by_rank, markers_of
from cirron_otel.core.importers.stormlog.replay import (
    PhaseReplay,
    attribute_all,
    boundary_of,
    replay,
)

from . import captures
from .conftest import ANSWERS, EVENTS, SIMULATED

CASES = json.loads((ANSWERS / "phase_replay_cases.json").read_text())
EVENT = json.loads(EVENTS[10])


def event(time: int, kind: str = "sample", **metadata: Any) -> dict[str, Any]:
    return {**EVENT, "session_id": "S", "timestamp_ns": time, "event_type": kind,
            "metadata": metadata}  # fmt: skip


def phase(
    time: int, action: str, scope: str, path: str, thread: int = 1, sequence: int = 1
) -> dict[str, Any]:
    labels = path.split("/")
    scope_data = {
        "action": action, "name": labels[-1], "path": labels, "depth": len(labels),
        "scope_id": scope, "parent_scope_id": None, "thread_id": thread, "thread_name": "t",
        "sequence": sequence,
    }  # fmt: skip
    return event(time, f"phase_{action}", phase_scope=scope_data)


TWO_THREADS = [
    phase(1, "enter", "S:1", "a"), phase(2, "enter", "S:2", "a/b", sequence=2),
    phase(3, "enter", "T:1", "io", thread=2, sequence=3),
    phase(8, "exit", "S:2", "a/b", sequence=4), phase(9, "exit", "S:1", "a", sequence=5),
    phase(10, "exit", "T:1", "io", thread=2, sequence=6),
]  # fmt: skip


def attributed(events: list[dict[str, Any]], at: dict[str, Any]) -> dict[str, Any] | None:
    found = next(each for one, each in attribute_all([*events, at]) if one is at)
    return None if found is None else found.to_json()


@pytest.mark.parametrize("name", CASES)
def test_recorded_replays(name: str) -> None:
    case = CASES[name]
    names = [*case["spans"][0]]
    assert [
        {each: list(value) if isinstance(value := getattr(found, each), tuple) else value
         for each in names}
        for found in replay(case["events"])
    ] == case["spans"]  # fmt: skip
    found = {one["timestamp_ns"]: each for one, each in attribute_all(case["events"])}
    for expected in case["attribution"]:
        attribution = found[expected["timestamp_ns"]]
        payload = None if attribution is None else attribution.to_json()
        assert payload == expected["result"]


def test_the_recorded_attribution() -> None:
    (expected,) = json.loads(
        (ANSWERS / "phase_attribution__sim_gpu__sink.json").read_text()
    ).values()
    found = [
        (one["timestamp_ns"], one["event_type"], None if each is None else each.to_json())
        for one, each in attribute_all([json.loads(line) for line in EVENTS])
    ]
    for entry in expected:
        assert (entry["timestamp_ns"], entry["event_type"], entry["phase_attribution"]) in found


def test_an_exact_origin_comes_first() -> None:
    found = attributed(TWO_THREADS, event(5, origin_phase_scope_id="S:1", origin_thread_id=2))
    assert found is not None
    assert (found["phase_source"], found["scope_id"]) == ("exact", "S:1")


def test_then_the_thread_of_the_event() -> None:
    found = attributed(TWO_THREADS, event(5, origin_phase_scope_id="unknown", origin_thread_id=1))
    assert found == {
        "phase_resolution": "unique", "phase_source": "thread_local", "phase_path": "a / b",
        "phase_paths": ["a / b"], "scope_id": "S:2", "thread_id": 1, "thread_name": "t",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("time", "paths"),
    [(0, None), (1, ["a"]), (2, ["a / b"]), (8, ["a / b", "io"]), (9, ["a", "io"]), (10, ["io"]),
     (11, None)],
)  # fmt: skip
def test_else_the_deepest_phases_with_their_ends_included(
    time: int, paths: list[str] | None
) -> None:
    found = attributed(TWO_THREADS, event(time))
    assert (found and found["phase_paths"]) == paths
    if found is not None and paths is not None:
        unique = len(paths) == 1
        assert found["phase_resolution"] == ("unique" if unique else "ambiguous")
        assert found.get("phase_source") == ("heuristic" if unique else None)


def test_a_summary_needs_different_labels() -> None:
    events = [phase(3, "enter", "T:1", "io", 2, 3), phase(4, "enter", "U:1", "io", 3, 9)]
    found = attributed(events, event(9))
    assert found == {"phase_resolution": "ambiguous", "phase_paths": ["io"]}
    mixed = attributed(TWO_THREADS, event(5))
    assert mixed is not None
    assert mixed["phase_summary"] == {"phase_path": "io", "source": "heuristic"}


def test_boundaries_are_ordered_by_time_sequence_and_scope() -> None:
    events = [phase(5, "exit", "S:1", "a", sequence=2), phase(5, "enter", "S:1", "a", sequence=1)]
    (found,) = replay(events)
    assert (found.start_ns, found.end_ns, found.synthetic_end) == (5, 5, False)


def test_an_exit_that_does_not_match_is_ignored() -> None:
    events = [phase(1, "enter", "S:1", "a"), phase(5, "exit", "S:1", "a", thread=2), event(9)]
    (found,) = replay(events)
    assert (found.end_ns, found.synthetic_end) == (9, True)


def test_an_open_phase_ends_with_its_session_and_rank() -> None:
    other = {**event(99), "rank": 1, "world_size": 2}
    (found,) = replay([phase(1, "enter", "S:1", "a"), event(9), other])
    assert (found.end_ns, found.synthetic_end) == (9, True)


def test_a_stream_of_boundaries_gives_the_same_phases_in_bounded_memory() -> None:
    draw = random.Random(3)
    for _ in range(200):
        events = [telemetry_dict(each) for each in captures.capture(draw)]
        boundaries = sorted(
            (each for one in events if (each := boundary_of(one)) is not None),
            key=lambda each: each.order,
        )
        state = PhaseReplay()
        streamed = [found for each in boundaries if (found := state.feed(each)) is not None]
        last: dict[tuple[str, int], int] = {}
        for one in events:
            group = (one["session_id"], one["rank"])
            last[group] = max(last.get(group, 0), one["timestamp_ns"])
        for group, end in last.items():
            streamed += state.finish(*group, end)
        complete = replay(events)
        assert sorted(map(repr, streamed)) == sorted(map(repr, complete))
        assert state.active("A", 0, 5) == []


def telemetry_dict(record: dict[str, Any]) -> dict[str, Any]:
    return {"local_rank": 0, **record}


def test_the_memory_of_a_replay_does_not_grow_with_closed_phases() -> None:
    state = PhaseReplay()
    for number in range(10_000):
        for action in ("enter", "exit"):
            boundary = boundary_of(phase(number, action, f"S:{number}", "a"))
            assert boundary is not None
            state.feed(boundary)
    assert len(state.active("S", 0, 9_999)) == 1
    assert sum(map(len, state._ended.values())) == 1


def test_the_recorded_markers() -> None:
    (expected,) = json.loads((ANSWERS / "markers__sim_gpu__sink.json").read_text()).values()
    (session,) = load_telemetry_sessions(SIMULATED / "sink")
    markers = derive_session_timeline_markers(session)
    assert [timeline_marker_to_dict(each) for each in markers] == expected


@pytest.mark.parametrize(
    ("kind", "marker", "severity"),
    [
        ("start", "lifecycle", "info"), ("stop", "lifecycle", "info"),
        ("collector_degraded", "collector", "warning"),
        ("collector_recovered", "collector", "info"),
        ("warning", "alert", "warning"), ("critical", "alert", "critical"),
        ("error", "alert", "critical"),
    ],
)  # fmt: skip
def test_point_markers(kind: str, marker: str, severity: str) -> None:
    (found,) = derive_timeline_markers([telemetry_event_from_record(event(5, kind))])
    assert (found.kind, found.severity, found.source) == (marker, severity, "telemetry_event")
    assert (found.start_ns, found.end_ns, found.event_type) == (5, None, kind)


def test_other_event_kinds_yield_no_markers() -> None:
    for kind in ("sample", "allocation", "deallocation", "peak", "cleanup"):
        assert derive_timeline_markers([telemetry_event_from_record(event(5, kind))]) == []


def test_an_error_with_oom_metadata_is_an_oom_marker() -> None:
    record = {**event(5, "error", oom_reason="torch.OutOfMemoryError"), "context": None}
    (found,) = derive_timeline_markers([telemetry_event_from_record(record)])
    assert (found.kind, found.label) == ("oom", "OOM detected: torch.OutOfMemoryError")


def test_phases_are_interval_markers_and_can_be_left_out() -> None:
    events = load_telemetry_events(SIMULATED / "sink")
    markers = derive_timeline_markers(events)
    intervals = [each for each in markers if each.end_ns is not None]
    assert {(each.kind, each.source) for each in intervals} == {("phase", "phase_replay")}
    assert len(intervals) == 7
    points = derive_timeline_markers(events, include_phase_markers=False)
    assert points == [each for each in markers if each.end_ns is None]


def test_texts_of_users_appear_beside_them() -> None:
    note = annotation_marker("S", 6, "learning rate lowered", rank=1, world_size=2)
    events = [event(5, "start"), event(7, "stop")]
    markers = markers_of(events, annotations=[note])
    assert [each.source for each in markers] == ["telemetry_event", "annotation", "telemetry_event"]
    assert timeline_marker_to_dict(markers[1])["label"] == "learning rate lowered"
    assert {rank: len(found) for rank, found in by_rank(markers).items()} == {0: 2, 1: 1}
