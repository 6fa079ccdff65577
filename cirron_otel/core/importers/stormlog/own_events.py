"""The records of a run of our own: strict schema 3, in the order of time.

Scopes are phases, and marks about memory are samples, alerts and errors. A record without a reading
of its own has the values of the last sample before it. A record before the first sample has the
values of that sample, and `telemetry_partial`. No value is made up.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .marks import COUNTERS
from .own_run import ALERTS, MEMORY, OOM, MemoryMarkRow, OwnSession, RunFacts
from .replay import PHASE_ENTER, PHASE_EXIT
from .scope_boundaries import ScopeBoundary, boundaries_of

_COLLECTORS: Final = {
    "cuda": "stormlog.cuda_tracker",
    "rocm": "stormlog.rocm_tracker",
    "mps": "stormlog.mps_tracker",
    "cpu": "stormlog.cpu_tracker",
}
_OTHER_COLLECTOR: Final = "cirron_otel.{}_sampler"
_CPU: Final = "cpu"
_READINGS: Final = COUNTERS[1:4] + COUNTERS[5:]
"""The counters that a sample's mark may have as attributes."""
_REQUIRED: Final = ("allocator_reserved_bytes", "device_used_bytes")
"""Counters that a record must have; if they are unknown, they are the allocated bytes."""
_DEGRADED: Final = {"collector_degraded": "degraded", "collector_recovered": "healthy"}


def events_of(session: OwnSession, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a session; temporary files go into `folder`."""
    writer = _RecordWriter(session)
    for _, _, source in _merged(session, folder):
        yield from writer.records(source)


def _merged(session: OwnSession, folder: Path) -> Iterator[tuple[int, int, Any]]:
    """Yield the sources of records in the order of time: a sample before what has its values."""
    facts = session.facts
    marks = ((mark.ts_ns, 0, mark) for mark in session.marks())
    phases = ((each.time_ns, 1, each) for each in boundaries_of(session, folder))
    yield facts.started_ns, 0, "start"
    yield from heapq.merge(marks, phases, key=lambda entry: entry[:2])
    if facts.ended_ns is not None and facts.is_complete:
        yield facts.ended_ns, 2, "stop"


class _RecordWriter:
    """Writes records with the values of the last sample."""

    def __init__(self, session: OwnSession) -> None:
        self._session, self._facts = session, session.facts
        assert session.first_sample is not None  # noqa: S101 - sessions without one are left out
        self._sample: MemoryMarkRow = session.first_sample
        self._is_early = True
        self._changes: dict[int, int] = {}
        self._sequence = 0
        self._last_ns = 0

    def records(self, source: MemoryMarkRow | ScopeBoundary | str) -> Iterator[dict[str, Any]]:
        """Yield the records of a mark, of a boundary, or of the start or stop of the session."""
        if isinstance(source, str):
            facts = self._facts
            time_ns = facts.started_ns if source == "start" else facts.ended_ns or self._last_ns
            yield self._record(max(time_ns, self._last_ns), source, f"Session {source}", {})
        elif isinstance(source, ScopeBoundary):
            self._last_ns = max(self._last_ns, source.time_ns)
            yield self._boundary(source)
        else:
            self._last_ns = max(self._last_ns, source.ts_ns)
            yield from self._mark(source)

    def _mark(self, mark: MemoryMarkRow) -> Iterator[dict[str, Any]]:
        if mark.name == MEMORY:
            self._sample, self._is_early = mark, False
            yield self._record(mark.ts_ns, "sample", "Memory sampled", self._origin(mark))
        elif mark.name == OOM:
            reason = str(mark.attrs.get("reason", OOM))
            details = {"oom_reason": reason, "oom_requested_bytes": mark.value}
            known = {key: value for key, value in details.items() if value is not None}
            context = f"OOM detected ({reason})"
            yield self._record(mark.ts_ns, "error", context, known | self._origin(mark))
        else:
            kind = ALERTS[mark.name]
            details = {f"alert_{key}": value for key, value in mark.attrs.items()}
            if kind in _DEGRADED:
                details["collector_health_status"] = _DEGRADED[kind]
            context = f"{mark.name}: {mark.attrs.get('limit', mark.attrs.get('error', ''))}"
            yield self._record(mark.ts_ns, kind, context, details | self._origin(mark))

    def _origin(self, mark: MemoryMarkRow) -> dict[str, Any]:
        """Return the scope of a mark, unless it is the session's."""
        if mark.scope_id in ("root", self._session.session):
            return {}
        return {"origin_phase_scope_id": mark.scope_id}

    def _boundary(self, boundary: ScopeBoundary) -> dict[str, Any]:
        self._sequence += 1
        scope: dict[str, Any] = {
            "action": "enter" if boundary.is_enter else "exit",
            "name": boundary.path[-1],
            "path": list(boundary.path),
            "depth": len(boundary.path),
            "scope_id": boundary.scope_id,
            "parent_scope_id": boundary.parent_id,
            "thread_id": boundary.thread_id,
            "thread_name": boundary.thread_name,
            "sequence": self._sequence,
        }
        if boundary.attrs:
            scope["attributes"] = boundary.attrs
        kind = PHASE_ENTER if boundary.is_enter else PHASE_EXIT
        verb = "entered" if boundary.is_enter else "exited"
        context = f"Phase {verb}: {' / '.join(boundary.path)}"
        return self._record(boundary.time_ns, kind, context, {"phase_scope": scope})

    def _record(
        self, time_ns: int, kind: str, context: str, details: dict[str, Any]
    ) -> dict[str, Any]:
        record = record_of_sample(self._facts, self._sample, kind, context)
        record["timestamp_ns"] = time_ns
        record["metadata"] |= details
        device = record["device_id"]
        if kind == "sample":
            before = self._changes.get(device, record["allocator_allocated_bytes"])
            record["allocator_change_bytes"] = record["allocator_allocated_bytes"] - before
            self._changes[device] = record["allocator_allocated_bytes"]
        elif self._is_early:
            partial = record["metadata"].get("collector_partial_fields", [])
            record["metadata"] |= {
                "telemetry_partial": True,
                "collector_partial_fields": sorted({"allocator_allocated_bytes", *partial}),
            }
        return record


def record_of_sample(
    facts: RunFacts, sample: MemoryMarkRow, kind: str, context: str
) -> dict[str, Any]:
    """Return a record with the values of a sample, at its time."""
    attrs, allocated = sample.attrs, sample.value
    backend, device = str(attrs.get("backend", _CPU)), attrs.get("device_id")
    readings = {name: _count(attrs.get(name)) for name in _READINGS}
    partial = [name for name in _REQUIRED if readings[name] is None]
    if backend == _CPU:
        partial = []  # the resident set is all that there is
    readings |= dict.fromkeys([name for name in _REQUIRED if readings[name] is None], allocated)
    others = {key: value for key, value in attrs.items() if key not in (*_READINGS, "device_id")}
    metadata = {**others, "backend": backend}
    _drop_impossible(readings, metadata)
    if partial:
        metadata |= {"telemetry_partial": True, "collector_partial_fields": partial}
    return {
        "schema_version": 3,
        "session_id": facts.session_id,
        "timestamp_ns": sample.ts_ns,
        "event_type": kind,
        "collector": _COLLECTORS.get(backend, _OTHER_COLLECTOR.format(backend)),
        "sampling_interval_ms": 0,
        "pid": facts.pid,
        "host": facts.host,
        "job_id": facts.job_id,
        "rank": facts.rank,
        "local_rank": facts.local_rank,
        "world_size": facts.world_size,
        "device_id": device if type(device) is int else -1,
        "allocator_allocated_bytes": allocated,
        "allocator_change_bytes": 0,
        **readings,
        "context": context,
        "metadata": metadata,
    }


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _drop_impossible(readings: dict[str, int | None], metadata: dict[str, Any]) -> None:
    """Move a total that is less than what is used to the metadata: they were read one by one."""
    total = readings["device_total_bytes"]
    parts = (readings["device_used_bytes"], readings["device_free_bytes"])
    if total is not None and any(part is not None and part > total for part in parts):
        metadata["reported_device_total_bytes"] = total
        readings["device_total_bytes"] = None
