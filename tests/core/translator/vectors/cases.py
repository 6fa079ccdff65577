"""What a vector is, and the records that vectors are made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel import exactjson, semconv
from cirron_otel.core.otlp.json_codec import traces_from_json, traces_to_json
from cirron_otel.core.placement import segments
from cirron_otel.core.placement.batch_placement import Plan, RecordPlacement, Segment
from cirron_otel.core.translator.own.encode import Options
from cirron_otel.core.translator.own.own import plan_of

Json = dict[str, Any]

CASES: dict[str, Json] = {}

LOW = "1111222233334444"
SESSION = "5e55105e55105e55" + LOW
EPOCH = "e90c000000000001" + LOW
STEP = "57e9000000000001" + LOW
BATCH_ID = "b0b0b0b0b0b04b0b8b0b0b0b0b0b0b0b"
T0 = 1_700_000_000_000_000_000
CREATED = T0 + 9_000
LIMITS: dict[str, Any] = {"MAX_EVENTS": semconv, "SEGMENT_RECORDS": segments}


class Vector:
    """One vector, as it stands in its file."""

    def __init__(self, case: Json) -> None:
        self.case = case

    def plan(self) -> Plan:
        told = self.case.get("plan", {})
        own = plan_of(self.case["batch"]) if "batch" in self.case else None
        if own is not None:
            return own
        return Plan(
            told.get("default", SESSION),
            {
                key: RecordPlacement(p["session"], bytes.fromhex(p["trace_id"]), p["depth"])
                for key, p in told.get("external", {}).items()
            },
            {key: [_segment(s) for s in each] for key, each in told.get("segments", {}).items()},
            {key: bytes.fromhex(trace) for key, trace in told.get("traces", {}).items()},
        )

    def name(self) -> str | None:
        return self.case.get("name")

    def options(self) -> Options:
        return Options(layout=self.case.get("layout", "segmented"))

    def messages(self) -> list[ResourceSpans]:
        data, _ = traces_from_json(exactjson.dumps(self.case["otlp"]))
        return list(data.resource_spans)

    @contextmanager
    def limits(self) -> Iterator[None]:
        """The limits of the mapping as the vector sets them, so that it can be small."""
        told = self.case.get("limits", {})
        before = {name: getattr(LIMITS[name], name) for name in told}
        try:
            for name, value in told.items():
                setattr(LIMITS[name], name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(LIMITS[name], name, value)


def otlp_of(messages: list[ResourceSpans]) -> Any:
    """The value of the OTLP/JSON of `messages`."""
    return exactjson.loads(traces_to_json(TracesData(resource_spans=messages)))


def _segment(told: Json) -> Segment:
    fields = {**told}
    for key in ("trace_id", "previous_trace_id"):
        fields[key] = bytes.fromhex(told[key])
    return Segment(**fields)


def case(vector: str, about: str, /, **fields: Any) -> None:
    """Add a vector."""
    assert vector not in CASES
    CASES[vector] = {"about": about, **fields}


def span(span_id: str, name: str, parent: str | None, start: int, end: int, **more: Any) -> Json:
    """A span record; times are offsets from T0 in nanoseconds."""
    return {
        "id": span_id,
        "name": name,
        "parent_id": parent,
        "index": None,
        "start_ns": T0 + start,
        "end_ns": T0 + end,
        "cpu_ns": None,
        "gpu_ns": None,
        "memory_peak_bytes": None,
        "thread_id": 7,
        "pid": 4242,
        "rank": 0,
        "attrs": {},
        "mark_ids": [],
    } | more


def mark(mark_id: str, span_id: str, name: str, value: Any, time: int, **more: Any) -> Json:
    """A mark record; the time is an offset from T0 in nanoseconds."""
    types = {float: "float", int: "int", str: "string", bool: "bool"}
    return {
        "id": mark_id,
        "span_id": span_id,
        "name": name,
        "value_type": types.get(type(value), "float"),
        "value": value,
        "attrs": {},
        "ts_ns": T0 + time,
        "kind": "point",
    } | more


def own_id(head: str) -> str:
    """An id as this project's SDK makes it: in the session's trace."""
    return head.ljust(16, "0") + LOW


def batch(spans: list[Json], marks: Any = (), snapshots: Any = (), **more: Any) -> Json:
    """A batch."""
    return {
        "schema_version": 1,
        "sdk_version": "0.3.0",
        "batch_id": BATCH_ID,
        "created_ns": CREATED,
        "spans": spans,
        "marks": list(marks),
        "snapshots": list(snapshots),
    } | more


def without(record: Json, *keys: str) -> Json:
    """The record without some of its keys."""
    return {key: value for key, value in record.items() if key not in keys}
