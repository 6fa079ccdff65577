"""Plans of batches that name their session: such a batch can be translated without other data.

This project's SDK writes such batches. So live export needs no index of a spool, and converting
the same file at any later time gives the same bytes. A value that does not conform to
docs/otlp-mapping.md is treated as absent; it is preserved like any other unknown key.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Raw

from .... import exactjson
from ....ids import is_id
from ...placement.batch_placement import (
    Plan,
    Record,
    RecordPlacement,
    Running,
    Segment,
    StatedSegment,
    StatedSession,
    stated_place,
    stated_trace,
)
from ..typed import TypedBatch
from ..values import UINT64_MAX, encodable, is_int


def plan_of(batch: Record) -> Plan | None:
    """Return the plan of a batch that names its session in `otel.session`; None for any other."""
    otel = batch.get("otel")
    session = otel.get("session") if isinstance(otel, dict) else None
    if not isinstance(otel, dict) or not isinstance(session, str) or not is_id(session):
        return None
    joined = stated_trace(otel.get("session_trace_id"))
    plan = Plan(session, traces={session: joined} if joined else {})
    trace_id = stated_trace(otel.get("trace_id")) or plan.session_trace(session)
    stated = StatedSession(
        trace_id,
        tuple(_opened(otel.get("segments"))),
        tuple(_running(otel.get("running"), trace_id)),
    )
    return Plan(session, _places(otel.get("traces"), session), traces=plan.traces, stated=stated)


def plan_of_typed(batch: TypedBatch) -> Plan | None:
    """Return the plan of a typed batch, as `plan_of` does."""
    if not isinstance(batch.otel, Raw):
        return None
    return plan_of({"otel": exactjson.loads(bytes(batch.otel))})


def _places(traces: object, session: str) -> dict[str, RecordPlacement]:
    if not isinstance(traces, dict):
        return {}
    stated = {some_id: stated_trace(value) for some_id, value in traces.items()}
    return {some_id: stated_place(session, trace) for some_id, trace in stated.items() if trace}


def _entries(value: object) -> Iterator[Record]:
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict):
            yield entry


def _opened(value: object) -> Iterator[StatedSegment]:
    for entry in _entries(value):
        number, start_ns = entry.get("number"), entry.get("start_ns")
        unit_id, parent_id = entry.get("unit_id"), entry.get("parent_id")
        trace_id = stated_trace(entry.get("trace_id"))
        previous = stated_trace(entry.get("previous_trace_id"))
        if not is_int(number, 1) or not is_int(start_ns, 0, UINT64_MAX) or not trace_id:
            continue
        if not isinstance(unit_id, str) or not isinstance(parent_id, str | None) or not previous:
            continue
        segment = Segment(
            int(start_ns or 0), unit_id, parent_id or None, int(number or 0), trace_id, previous
        )
        yield StatedSegment(segment, stated_trace(entry.get("parent_trace_id")) or trace_id)


def _running(value: object, default: bytes) -> Iterator[Running]:
    for entry in _entries(value):
        scope_id, name, index = entry.get("id"), entry.get("name"), entry.get("index")
        start_ns, parent_id = entry.get("start_ns"), entry.get("parent_id")
        trace_id = stated_trace(entry["trace_id"]) if "trace_id" in entry else default
        if not isinstance(scope_id, str) or not isinstance(name, str) or not trace_id:
            continue
        if not encodable(scope_id) or not encodable(name) or not isinstance(parent_id, str | None):
            continue
        if not is_int(start_ns, 0, UINT64_MAX) or not (index is None or is_int(index)):
            continue
        yield Running(scope_id, name, index, int(start_ns or 0), parent_id, trace_id)
