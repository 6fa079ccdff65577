"""The records of a run of our own: strict schema 3, in the order of time.

Scopes are phases, and marks about memory are samples, alerts and errors. A record without a reading
of its own has the values of the last sample before it. A record before the first sample has the
values of that sample, and `telemetry_partial`. No value is made up.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from ...records.memory_records import record_of_sample
from .own_run import ALERTS, MEMORY, OOM, MemoryMarkRow, OwnSession
from .replay import PHASE_ENTER, PHASE_EXIT
from .scope_boundaries import ScopeBoundary, boundaries_of

BUNDLES: Final = "oom_dumps"
"""The directory in a sink for the bundles of errors for lack of memory."""
_DEGRADED: Final = {"collector_degraded": "degraded", "collector_recovered": "healthy"}


def events_of(
    session: OwnSession, folder: Path, bundles: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the records of a session; temporary files go into `folder`.

    `bundles` are the names of the bundles that are written beside the records.
    """
    writer = _RecordWriter(session, bundles)
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

    def __init__(self, session: OwnSession, bundles: Collection[str]) -> None:
        self._session, self._facts, self._bundles = session, session.facts, bundles
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
            bundle = f"{BUNDLES}/{mark.scope_id}" if mark.scope_id in self._bundles else None
            details = {
                "oom_reason": reason, "oom_requested_bytes": mark.value, "oom_dump_path": bundle,
            }  # fmt: skip
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
        allocated = self._sample.value
        assert allocated is not None  # noqa: S101 - `own_run` leaves out samples without a value
        record = record_of_sample(
            self._facts, time_ns, allocated, self._sample.attrs, kind, context
        )
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
