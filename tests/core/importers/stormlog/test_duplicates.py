"""An event that several recordings contain counts once, for the commands and for the import."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.importers.stormlog import load_telemetry_sessions, telemetry_event_to_dict
from cirron_otel.core.importers.stormlog.reading import StormlogReader
from cirron_otel.core.importers.stormlog.replay import replay
from cirron_otel.core.importers.stormlog.session_timelines import ATTRIBUTED, session_timelines
from tests.kit.spools.comparing import batches

from .captures import (
    capture,
    record,
    write_array,
    write_sink,
)
from .returning import (
    files_of,
    imported,
    recorded,
    records_in,
    written,
)

SEEDS = range(70)
PHASE = ("rank", "name", "thread_id", "start_ns", "end_ns")


def bundle_of(folder: Path, number: int, records: list[dict[str, Any]]) -> None:
    """Write the bundle of an OOM: its copies of a sink's events lack some of the fields."""
    folder.mkdir(parents=True)
    copies = []
    for each in records:
        metadata = dict(each["metadata"])
        scope = {"phase_scope": metadata["phase_scope"]} if "phase_scope" in metadata else {}
        partial = {
            "pid": -1, "host": "unknown", "allocator_change_bytes": 0,
            "allocator_allocated_bytes": each["allocator_allocated_bytes"] + 1,
        }  # fmt: skip
        copies.append({**each, **partial, "metadata": {**scope, "bundle": number % 2}})
    (folder / "events.json").write_text(json.dumps(copies, indent=2))
    (folder / "metadata.json").write_text("{}")
    (folder / "manifest.json").write_text(json.dumps({
        "schema_version": 2, "bundle_name": folder.name, "event_count": len(copies),
        "session_id": "A", "session_status": "running", "session": None,
        "files": ["manifest.json", "events.json", "metadata.json"],
    }))  # fmt: skip


def overlapping(folder: Path, random_: random.Random) -> Path:
    """Several recordings, each of which contains some of the same events."""
    folder.mkdir()
    events = capture(random_) + [record(random_) for _ in range(3)]
    events += random_.choices(events, k=random_.randrange(4))
    write_sink(folder / "sink", [*events, *capture(random_)], random_)
    for name in ("export.json", "more.json")[: random_.randrange(3)]:
        write_array(folder / name, random_.choices(events, k=random_.randrange(1, 12)), random_)
    for number in range(random_.randrange(3)):
        chosen = [each for each in events if each["session_id"] == "A"][: random_.randrange(12)]
        bundle_of(folder / "oom_dumps" / f"oom_{number}", number, chosen)
    return folder


def attributed_marks(
    spans: list[dict[str, Any]], marks: list[dict[str, Any]]
) -> Counter[tuple[Any, ...]]:
    """Time and type of each sample and alert, and its phase; None for the session."""
    by_id = {span["id"]: (span["name"], span["thread_id"], span["start_ns"]) for span in spans}
    return Counter(
        (mark["ts_ns"], mark["name"].removeprefix("stormlog."), by_id.get(mark["span_id"]))
        for mark in marks
        if mark["name"].removeprefix("stormlog.") in ATTRIBUTED
    )


def attributed_events(path: Path) -> Counter[tuple[Any, ...]]:
    """The same as the timelines have it."""
    found: Counter[tuple[Any, ...]] = Counter()
    for timeline in session_timelines(StormlogReader(path, on_finding=lambda _: None), None):
        for event, attribution in timeline.attribution():
            phase = None
            if attribution is not None and attribution.is_unique:
                (only,) = attribution.phases
                phase = only.name, only.thread_id, only.start_ns
            found[event["timestamp_ns"], event["event_type"], phase] += 1
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_both_sides_count_the_same_events(seed: int, tmp_path: Path) -> None:
    path = overlapping(tmp_path / "recordings", random.Random(seed))
    loaded = load_telemetry_sessions(path)
    spool, report = imported(path, tmp_path)
    marks = records_in(spool, "marks")
    assert len({mark["id"] for mark in marks}) == len(marks)
    events = [event for session in loaded for event in session.events]
    assert Counter((event.timestamp_ns, f"stormlog.{event.event_type}") for event in events) == (
        Counter((mark["ts_ns"], mark["name"]) for mark in marks)
    )
    spans = [span for span in records_in(spool, "spans") if span["name"] != "cirron.session"]
    phases = replay([telemetry_event_to_dict(event) for event in events])
    is_large = any(abs(phase.thread_id) >= 2**63 for phase in phases)
    is_reported = any("64 bits" in str(finding) for finding in report.skipped)
    assert is_reported or not is_large
    if not is_reported:
        assert Counter(map(itemgetter(*PHASE), spans)) == Counter(map(attrgetter(*PHASE), phases))
        assert attributed_marks(spans, marks) == attributed_events(path)
    assert len({span["id"] for span in spans}) == len(spans)
    torn = any(not file.read_bytes().endswith(b"\n") for file in path.rglob("*.jsonl"))
    if report.exit_code == 0 or torn:
        assert written(spool, path, tmp_path) == files_of(path)


def test_two_bundles_with_the_same_events_come_back(tmp_path: Path) -> None:
    """The second bundle's copies have no mark of their own that their text could follow from."""
    random_, path = random.Random(0), tmp_path / "recordings"
    path.mkdir()
    events = [record(random_, session_id="A", timestamp_ns=number) for number in range(5)]
    write_sink(path / "sink", events, random.Random(1))
    for number in (0, 2):
        bundle_of(path / "oom_dumps" / f"oom_{number}", number, events)
    spool, report = imported(path, tmp_path)
    assert report.duplicates == 2 * len(events)
    assert len(records_in(spool, "marks")) == len(events)
    assert written(spool, path, tmp_path) == files_of(path)


def test_each_copy_of_a_recording_is_stored_as_references(tmp_path: Path) -> None:
    path = tmp_path / "recordings"
    path.mkdir()
    for name in ("a.json", "b.json", "c.json"):
        shutil.copy(recorded("v039/cli_track/track.json"), path / name)
    spool, report = imported(path, tmp_path)
    assert report.duplicates == 2 * 21
    noted: Counter[str] = Counter()
    for batch in batches(spool).values():
        for kind in ("repeats", "texts"):
            noted[kind] += len(batch["stormlog"].get(kind, ()))
    assert noted == {"repeats": 2 * 21, "texts": 0}
