"""Spools with the marks of Stormlog's recordings, and the points that the records require.

The marks are written here by the rules of docs/stormlog.md, and the expected points are computed
from the records themselves, so that both are independent of the code under test.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

STORMLOG = Path(__file__).parents[2] / "testdata" / "stormlog"
SIM_GPU = STORMLOG / "v039" / "sim_gpu" / "sink" / "segment-000001.jsonl"
CLI_TRACK = STORMLOG / "v039" / "cli_track" / "sink" / "segment-000001.jsonl"
RANKS = [
    STORMLOG / "v043" / "distributed" / f"sink_rank{rank}" / "segment-000001.jsonl"
    for rank in (0, 1)
]
RECORDINGS = {"sim_gpu": [SIM_GPU], "cli_track": [CLI_TRACK], "distributed": RANKS}
SOURCES = {
    "sim_gpu": f"stormlog:{SIM_GPU.parent}",
    "cli_track": f"stormlog:{CLI_TRACK.parent}",
    "distributed": f"stormlog:{RANKS[0].parents[1]}",
}
"""The address of each recording as a source."""

POINT_ATTRIBUTES = ("cirron.rank", "cirron.run.id", "cirron.run.name")
OF_SESSION = (
    "schema_version", "session_id", "pid", "host", "job_id", "rank", "local_rank", "world_size",
)  # fmt: skip
ELSEWHERE = ("timestamp_ns", "event_type", "allocator_allocated_bytes")
"""The fields that are the time, the name and the value of a mark."""
CREATED_NS = 1_700_000_000_000_000_000

Record = dict[str, Any]
Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Session, instrument, attributes."""
Points = dict[Key, list[tuple[int, float]]]
"""The (time, value) pairs of each series."""


def records_of(paths: Iterable[Path]) -> list[Record]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def mark_of(record: Record) -> dict[str, Any]:
    """The mark of an event, as the importer writes it."""
    attrs = {
        key: value
        for key, value in record.items()
        if key not in (*OF_SESSION, *ELSEWHERE) and value is not None
    }
    session = record["session_id"].replace("-", "")
    return {
        "id": hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16] + session[16:],
        "span_id": session,
        "name": f"stormlog.{record['event_type']}",
        "value_type": "int",
        "value": record["allocator_allocated_bytes"],
        "attrs": attrs,
        "ts_ns": record["timestamp_ns"],
        "kind": "point",
    }


def session_span(session: str, records: list[Record]) -> dict[str, Any]:
    times = [record["timestamp_ns"] for record in records]
    return {
        "id": session, "name": "cirron.session", "parent_id": None, "index": None,
        "start_ns": min(times), "end_ns": max(times), "cpu_ns": None, "gpu_ns": None,
        "memory_peak_bytes": None, "thread_id": None, "pid": records[0]["pid"],
        "rank": records[0]["rank"], "attrs": {}, "mark_ids": [],
    }  # fmt: skip


def batch_of(
    session: str, number: int, spans: list[Any], marks: list[Any], **attributes: Any
) -> dict[str, Any]:
    """A batch that names its session, as ours do."""
    return {
        "schema_version": 1,
        "sdk_version": "0.3.0+cirron-otel.0.1.0",
        "batch_id": hashlib.sha256(f"{session}{number}".encode()).hexdigest()[:32],
        "created_ns": CREATED_NS + number,
        "spans": spans,
        "marks": marks,
        "snapshots": [],
        "otel": {
            "session": session,
            "trace_id": session,
            "resource": {"attributes": attributes},
        },
    }


def write_batches(spool: Path, batches: Iterable[dict[str, Any]]) -> Path:
    (spool / "spool").mkdir(parents=True)
    for batch in batches:
        name = f"{batch['created_ns']:020}-{batch['batch_id']}.json"
        (spool / "spool" / name).write_text(json.dumps(batch))
    return spool


def spool_of(records: list[Record], spool: Path, marks_in_batch: int = 20) -> Path:
    """A spool with the marks of the records; the session's span is in its last batch."""
    return write_batches(spool, _batches(records, marks_in_batch))


def _batches(records: list[Record], marks_in_batch: int) -> Iterator[dict[str, Any]]:
    number = 0
    for session_id in dict.fromkeys(record["session_id"] for record in records):
        own = [record for record in records if record["session_id"] == session_id]
        session = session_id.replace("-", "")
        marks = [mark_of(record) for record in own]
        for start in range(0, len(marks), marks_in_batch):
            number += 1
            part = marks[start : start + marks_in_batch]
            is_last = start + marks_in_batch >= len(marks)
            spans = [session_span(session, own)] if is_last else []
            batch = batch_of(session, number, spans, part, **{"host.name": own[0]["host"]})
            yield batch | {"stormlog": {"session": {key: own[0].get(key) for key in OF_SESSION}}}


# --- what the records require ---------------------------------------------------------------------


def is_healthy(record: Record) -> bool:
    """Whether the record's collector is healthy; one that does not report its health is."""
    return record["metadata"].get("collector_health_status") in (None, "healthy")


def required(records: Iterable[Record]) -> Points:
    """The points that docs/metrics.md requires of records of the CUDA and CPU trackers."""
    points: Points = {}

    def add(record: Record, name: str, value: float | None, **attributes: str) -> None:
        if value is not None:
            session = record["session_id"].replace("-", "")
            named = {key.replace("_", "."): text for key, text in attributes.items()}
            key = session, name, tuple(sorted(named.items()))
            points.setdefault(key, []).append((record["timestamp_ns"], value))

    for record in records:
        if not is_healthy(record):
            continue
        is_cpu = record["device_id"] == -1
        device = {} if is_cpu else {"hw_id": f"cuda:{record['device_id']}"}
        event = record["event_type"]
        if event in ("allocation", "deallocation"):
            change = record["allocator_change_bytes"]
            add(record, "cirron.memory.allocator.change", change, **device)
        if event != "sample":
            continue
        allocated, reserved = (record[f"allocator_{kind}_bytes"] for kind in _KINDS[:2])
        used, total = record["device_used_bytes"], record["device_total_bytes"]
        if is_cpu:
            add(record, "process.memory.usage", allocated)
            continue
        add(record, "hw.gpu.memory.usage", used, **device)
        add(record, "hw.gpu.memory.limit", total, **device)
        for kind in _KINDS:
            value = record[f"allocator_{kind}_bytes"]
            add(record, "cirron.memory.allocator", value, **device, cirron_memory_kind=kind)
        for kind, whole, part in (("device", used, reserved), ("allocator", reserved, allocated)):
            if None not in (whole, part):
                gap = whole - part
                add(record, "cirron.memory.gap", gap, **device, cirron_memory_kind=kind)
    return points


_KINDS = ("allocated", "reserved", "active", "inactive")


# --- reading messages -----------------------------------------------------------------------------


def points_of(messages: Iterable[dict[str, Any]]) -> Points:
    """The points of the gauges and sums in OTLP/JSON messages, by series.

    Each point must repeat the rank and the run of its resource; the series leave them out.
    """
    points: Points = {}
    for message in messages:
        for group in message["resourceMetrics"]:
            resource = attributes_of(group["resource"])
            session = resource["cirron.session.id"]
            common = {key: resource[key] for key in POINT_ATTRIBUTES if key in resource}
            for metric in group["scopeMetrics"][0]["metrics"]:
                data = metric.get("gauge") or metric.get("sum") or {}
                for point in data.get("dataPoints", []):
                    attributes = attributes_of(point)
                    assert {key: attributes.pop(key, None) for key in common} == common
                    key = session, metric["name"], tuple(sorted(attributes.items()))
                    series = points.setdefault(key, [])
                    value = int(point["asInt"]) if "asInt" in point else point["asDouble"]
                    series.append((int(point["timeUnixNano"]), value))
    return points


def attributes_of(record: dict[str, Any]) -> dict[str, Any]:
    return {
        each["key"]: next(iter(each["value"].values())) for each in record.get("attributes", [])
    }
