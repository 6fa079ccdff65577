"""The files of a bundle: Stormlog's manifest version 2, with events of its schema 3.

docs/memory.md, "Out of memory", describes them. Values that are unknown are null or absent, and
events without a reading do not exist: no value is ever a made-up zero.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from ...core.records.memory_devices import CPU
from ...core.records.memory_records import record_of_sample
from ..tracing.costs import resident_now
from . import allocators
from .environment import environment
from .report import RUNNING, OomReport, Sample, SessionFacts

if TYPE_CHECKING:
    from .recognition import OutOfMemory

MANIFEST_VERSION: Final = 2
MANIFEST, EVENTS, METADATA = "manifest.json", "events.json", "metadata.json"
ENVIRONMENT, HISTORY = "environment.json", "memory_snapshot.pickle"
_CPU_ID: Final = -1
_OF_MARK: Final = ("ts_ns", "allocated_bytes")
"""The keys of a sample that are no attributes of its mark."""


def files_of(
    report: OomReport, facts: SessionFacts, samples: list[Sample], most: int | None
) -> dict[str, bytes] | None:
    """Return the files of a bundle by name; None if they would be larger than `most` bytes.

    The memory history is left out first. Reads the allocators now, on the calling thread.
    """
    statistics = allocators.statistics()
    backend = _backend(report.oom)
    events = _events(report, facts, samples, statistics)
    metadata = _metadata(report, facts, backend, len(events), statistics)
    files = {
        MANIFEST: b"",
        EVENTS: _json(events),
        METADATA: b"",
        ENVIRONMENT: _json(environment(samples[-1] if samples else {})),
    }
    history = allocators.history()
    if history is not None:
        room = None if most is None else most - 2 * sum(map(len, files.values()))
        if room is None or len(history) <= room:
            files[HISTORY] = history
        else:
            metadata["custom_metadata"]["memory_snapshot_bytes_left_out"] = len(history)
    files[METADATA] = _json(metadata)
    files[MANIFEST] = _json(_manifest(report, facts, backend, len(events), list(files)))
    size = sum(map(len, files.values()))
    return files if most is None or size <= most else None


def _manifest(
    report: OomReport, facts: SessionFacts, backend: str, count: int, names: list[str]
) -> dict[str, Any]:
    moment = datetime.fromtimestamp(report.ts_ns // 10**9, UTC)
    return {
        "schema_version": MANIFEST_VERSION,
        "bundle_name": report.span_id,
        "created_at_utc": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "reason": report.oom.reason,
        "backend": backend,
        "event_count": count,
        "session_id": facts.uuid,
        "session_status": RUNNING,
        "session": facts.summary(),
        "files": names,
    }


def _metadata(
    report: OomReport,
    facts: SessionFacts,
    backend: str,
    count: int,
    statistics: dict[str, dict[str, int]],
) -> dict[str, Any]:
    oom = report.oom
    custom = {
        "span_id": report.span_id,
        "trace_id": report.trace_id,
        "requested_bytes": oom.requested_bytes,
        "requested": oom.requested,
        "device_id": oom.device_id,
        "allocator_statistics": statistics,
    }
    return {
        "reason": oom.reason,
        "exception_type": report.kind,
        "exception_module": report.module,
        "exception_message": report.message,
        "context": report.path,
        "backend": backend,
        "captured_event_count": count,
        "session_id": facts.uuid,
        "session_status": RUNNING,
        "session": facts.summary(),
        "custom_metadata": {
            name: value for name, value in custom.items() if value is not None and value != {}
        },
    }


def _events(
    report: OomReport,
    facts: SessionFacts,
    samples: list[Sample],
    statistics: dict[str, dict[str, int]],
) -> list[dict[str, Any]]:
    """Return the samples as events, and the error itself with the last known reading."""
    events = [_event(each, facts, "sample", "Memory sampled", {}) for each in samples]
    last = _last_reading(report, samples, statistics)
    if last is not None:
        oom = report.oom
        details = {
            "oom_reason": oom.reason,
            "oom_requested_bytes": oom.requested_bytes,
            "oom_dump_path": f"oom/{report.span_id}",
            "exception_type": report.kind,
            "origin_phase_scope_id": report.span_id,
        }
        known = {name: value for name, value in details.items() if value is not None}
        reading = {**last, "ts_ns": report.ts_ns}
        events.append(_event(reading, facts, "error", f"OOM detected ({oom.reason})", known))
    return sorted(events, key=itemgetter("timestamp_ns"))


def _event(
    sample: Sample, facts: SessionFacts, kind: str, context: str, details: dict[str, Any]
) -> dict[str, Any]:
    attrs = {name: value for name, value in sample.items() if name not in _OF_MARK}
    record = record_of_sample(
        facts, sample["ts_ns"], sample["allocated_bytes"], attrs, kind, context
    )
    record["metadata"] |= details
    return record


def _last_reading(
    report: OomReport, samples: list[Sample], statistics: dict[str, dict[str, int]]
) -> Sample | None:
    """Return the last sample of the device that is out of memory, or a reading made now."""
    oom = report.oom
    device = _CPU_ID if oom.backend == CPU else oom.device_id
    for sample in reversed(samples):
        if sample.get("backend", CPU) == oom.backend and device in (None, sample.get("device_id")):
            return sample
    for name, values in statistics.items():
        backend, _, number = name.partition(":")
        if backend == oom.backend and device in (None, int(number)):
            return _reading_of(backend, int(number), values)
    resident = resident_now() if oom.backend in (CPU, None) else None
    if resident is None:
        return None
    return {"backend": CPU, "device_id": _CPU_ID, "allocated_bytes": resident}


def _reading_of(backend: str, device: int, values: dict[str, int]) -> Sample | None:
    names = {
        "allocated_bytes": ("allocated_bytes.all.current", "current_allocated_memory"),
        "allocator_reserved_bytes": ("reserved_bytes.all.current", "driver_allocated_memory"),
        "allocator_active_bytes": ("active_bytes.all.current",),
    }
    reading: dict[str, Any] = {"backend": backend, "device_id": device}
    for name, candidates in names.items():
        known = [values[each] for each in candidates if each in values]
        if known:
            reading[name] = known[0]
    return reading if "allocated_bytes" in reading else None


def _backend(oom: OutOfMemory) -> str:
    """Return Stormlog's name of the backend: it distinguishes AMD's devices."""
    if oom.backend == "cuda" and allocators.is_rocm():
        return "rocm"
    return oom.backend or "unknown"


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()
