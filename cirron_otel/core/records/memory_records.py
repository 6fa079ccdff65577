"""Records of Stormlog's schema 3 that are made from samples of our own.

The conversion of a run and the bundles of the flight recorder use them, so that the same sample is
the same record in both. docs/stormlog.md, "Writing", describes the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from .memory_devices import CPU, TRACKERS

SCHEMA: Final = 3
_OWN_COLLECTOR: Final = "cirron_otel.{}_sampler"
_READINGS: Final = (
    "allocator_reserved_bytes", "allocator_active_bytes", "allocator_inactive_bytes",
    "device_used_bytes", "device_free_bytes", "device_total_bytes",
)  # fmt: skip
_REQUIRED: Final = ("allocator_reserved_bytes", "device_used_bytes")
"""Readings that a record must have; if they are unknown, they are the allocated bytes."""


class RecordedSession(Protocol):
    """The session fields of records."""

    @property
    def uuid(self) -> str:
        """The session's id in the form of a UUID."""

    @property
    def host(self) -> str:
        """The name of the host."""

    @property
    def pid(self) -> int:
        """The process; -1 if it is unknown."""

    @property
    def job_id(self) -> str | None:
        """The job."""

    @property
    def rank(self) -> int:
        """The rank of the process."""

    @property
    def local_rank(self) -> int:
        """Its rank on the host."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""

    @property
    def sampling_interval_ms(self) -> int:
        """The interval between samples, ms; 0 if it is unknown."""


def record_of_sample(
    session: RecordedSession,
    time_ns: int,
    allocated: int,
    attrs: Mapping[str, Any],
    kind: str,
    context: str,
) -> dict[str, Any]:
    """Return a record with the value and the attributes of a mark `memory`.

    Sizes that no field of a record has are in its `metadata`.
    """
    backend, device = str(attrs.get("backend", CPU)), attrs.get("device_id")
    readings = {name: _count(attrs.get(name)) for name in _READINGS}
    unknown = [name for name in _REQUIRED if readings[name] is None]
    readings |= dict.fromkeys(unknown, allocated)
    others = {key: value for key, value in attrs.items() if key not in (*_READINGS, "device_id")}
    metadata = {**others, "backend": backend}
    _drop_impossible(readings, metadata)
    if unknown and backend != CPU:  # without a device, the resident set is all that there is
        metadata |= {"telemetry_partial": True, "collector_partial_fields": unknown}
    return {
        "schema_version": SCHEMA,
        "session_id": session.uuid,
        "timestamp_ns": time_ns,
        "event_type": kind,
        "collector": TRACKERS.get(backend, _OWN_COLLECTOR.format(backend)),
        "sampling_interval_ms": session.sampling_interval_ms,
        "pid": session.pid,
        "host": session.host,
        "job_id": session.job_id,
        "rank": session.rank,
        "local_rank": session.local_rank,
        "world_size": session.world_size,
        "device_id": device if type(device) is int else -1,
        "allocator_allocated_bytes": allocated,
        "allocator_change_bytes": 0,
        **readings,
        "context": context,
        "metadata": metadata,
    }


def summary_of(
    session: RecordedSession, status: str, started_ns: int, ended_ns: int | None, source: str
) -> dict[str, Any]:
    """Return a session as an entry of a manifest."""
    return {
        "session_id": session.uuid,
        "status": status,
        "started_at_ns": started_ns,
        "ended_at_ns": ended_ns,
        "host": session.host,
        "pid": session.pid,
        "job_id": session.job_id,
        "rank": session.rank,
        "local_rank": session.local_rank,
        "world_size": session.world_size,
        "source": source,
    }


def milliseconds(interval_s: object) -> int:
    """Return an interval in whole milliseconds; 0 if it is unknown."""
    is_number = type(interval_s) in (int, float)
    return round(interval_s * 1000) if is_number and 0 < interval_s < 1e9 else 0  # type: ignore[operator]


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _drop_impossible(readings: dict[str, int | None], metadata: dict[str, Any]) -> None:
    """Move a total that is less than what is used to the metadata: they were read one by one."""
    total = readings["device_total_bytes"]
    parts = (readings["device_used_bytes"], readings["device_free_bytes"])
    if total is not None and any(part is not None and part > total for part in parts):
        metadata["reported_device_total_bytes"] = total
        readings["device_total_bytes"] = None
