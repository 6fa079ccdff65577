"""Conversion of legacy records, those without `schema_version`, and the page's defaults."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ....errors import InputError
from ....ids import digest

_IDENTITY = ("job_id", "rank", "local_rank", "world_size")
_COLLECTORS = ("cuda", "rocm", "mps", "cpu")
_TENSORFLOW = "stormlog.tensorflow.memory_tracker"
_DEVICE_INDEX = re.compile(r".*:(\d+)", re.DOTALL)


class TelemetryRecordError(InputError, ValueError):
    """A record is not a valid telemetry event; programs that expect a ValueError get one."""


def synthetic_session_id(content: bytes) -> str:
    """Return the session id for `content`, the digest of records that have none."""
    text = content.hex()
    return f"legacy-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def canonical_identity(record: Mapping[str, Any], default: str | None) -> str:
    """Return the session id of a record that may have none."""
    own = record.get("session_id")
    if own is None:
        metadata = record.get("metadata")
        own = metadata.get("session_id") if isinstance(metadata, Mapping) else None
    if isinstance(own, str) and own.strip():
        return own
    if default is not None:
        return default
    place = (record.get("timestamp_ns", record.get("timestamp")), record.get("host"),
             record.get("pid"))  # fmt: skip
    return synthetic_session_id(digest(repr(place).encode("utf-8", "surrogatepass")))


def legacy_event(
    record: Mapping[str, Any], collector: str, interval_ms: int, session_id: str | None
) -> dict[str, Any]:
    """Return the version-3 form of a legacy record; its fields are still to be checked.

    Raises TelemetryRecordError if the record has no valid time, or if a field that is present has
    a value from which no default follows.
    """
    metadata = _metadata(record)
    allocated = _allocated(record)
    used = record.get("device_used_bytes", allocated)
    total = _first(record, "device_total_bytes", "device_total", "total_memory")
    if total is None:
        total = _first(metadata, "total_memory", "device_total")
    _check_optional("device_total_bytes", total)
    identity = _distributed(record, metadata)
    return {
        "schema_version": 3,
        "session_id": canonical_identity({**record, "metadata": metadata}, session_id),
        "timestamp_ns": _timestamp_ns(record),
        "event_type": record.get("event_type", record.get("type", "sample")),
        "collector": _collector(record, metadata, collector),
        "sampling_interval_ms": record.get("sampling_interval_ms", interval_ms),
        "pid": record.get("pid", metadata.get("pid", -1)),
        "host": record.get("host", metadata.get("host", "unknown")),
        **identity,
        "device_id": _device_id(record),
        "allocator_allocated_bytes": allocated,
        "allocator_reserved_bytes": _present(
            record, "allocator_reserved_bytes", "memory_reserved", default=allocated
        ),
        "allocator_active_bytes": record.get("allocator_active_bytes"),
        "allocator_inactive_bytes": record.get("allocator_inactive_bytes"),
        "allocator_change_bytes": _present(
            record, "allocator_change_bytes", "memory_change", default=0
        ),
        "device_used_bytes": used,
        "device_free_bytes": _free(record, used, total),
        "device_total_bytes": total,
        "context": record.get("context", record.get("message")),
        "metadata": {
            name: value
            for name, value in metadata.items()
            if name not in _IDENTITY and name != "session_id"
        },
    }


def _metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata, and the `metadata_*` fields folded into it."""
    metadata = record.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TelemetryRecordError("metadata: expected an object")
    folded = {
        name.removeprefix("metadata_"): value
        for name, value in record.items()
        if name.startswith("metadata_")
    }
    return {**(metadata or {}), **folded}


def _timestamp_ns(record: Mapping[str, Any]) -> Any:
    if "timestamp_ns" in record:
        return record["timestamp_ns"]
    seconds = record.get("timestamp")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TelemetryRecordError(
            "timestamp is missing or not a number: expected timestamp_ns, or timestamp in seconds"
        )
    try:
        # Stormlog computes in floating point, so other arithmetic would give another time.
        nanoseconds = float(seconds) * 1_000_000_000
    except OverflowError:
        nanoseconds = math.inf
    if not math.isfinite(nanoseconds):
        raise TelemetryRecordError(f"timestamp is {seconds}: expected a finite number of seconds")
    return int(nanoseconds)


def _allocated(record: Mapping[str, Any]) -> Any:
    for name in ("allocator_allocated_bytes", "memory_allocated"):
        if name in record:
            return record[name]
    megabytes = record.get("memory_mb")
    if isinstance(megabytes, int | float) and not isinstance(megabytes, bool):
        try:
            return int(float(megabytes) * 2**20)
        except (OverflowError, ValueError):
            raise TelemetryRecordError(
                f"memory_mb is {megabytes}: expected a finite number"
            ) from None
    return record.get("device_used_bytes", 0)


def _free(record: Mapping[str, Any], used: Any, total: Any) -> Any:
    if "device_free_bytes" in record:
        return record["device_free_bytes"]
    if total is None:
        return None
    if type(used) is int and type(total) is int and used <= total:
        return total - used
    return None


def _device_id(record: Mapping[str, Any]) -> Any:
    """Return the device's index; -1 for the CPU, or if it is unknown."""
    if "device_id" in record:
        return record["device_id"]
    device = record.get("device")
    if isinstance(device, str):
        if "cpu" in device.lower():
            return -1
        match = _DEVICE_INDEX.fullmatch(device)
        if match is not None:
            return int(match[1])
        if device.lower().startswith("/gpu"):
            return 0
    return 0 if "memory_mb" in record else -1


def _collector(record: Mapping[str, Any], metadata: Mapping[str, Any], default: str) -> str:
    named = record.get("collector")
    if isinstance(named, str) and named.strip():
        return named
    backend = record.get("backend", metadata.get("backend"))
    if isinstance(backend, str) and backend.lower() in _COLLECTORS:
        return f"stormlog.{backend.lower()}_tracker"
    if "memory_mb" in record:
        return _TENSORFLOW
    if "memory_allocated" in record:
        device = _device_id(record)
        if type(device) is int:
            return "stormlog.cpu_tracker" if device < 0 else "stormlog.cuda_tracker"
    return default


def _distributed(record: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the distributed identity, from the record or its metadata."""
    found: dict[str, Any] = {}
    for name in _IDENTITY:
        value = record.get(name)
        found[name] = metadata.get(name) if value is None else value
    if found["rank"] is None:
        found["rank"] = 0
    if found["local_rank"] is None:
        found["local_rank"] = found["rank"]
    if found["world_size"] is None:
        found["world_size"] = 1
    return found


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    """Return the first of the values that is not null."""
    for name in names:
        if fields.get(name) is not None:
            return fields[name]
    return None


def _present(fields: Mapping[str, Any], *names: str, default: Any) -> Any:
    """Return the first of the fields that is present, even if it is null."""
    for name in names:
        if name in fields:
            return fields[name]
    return default


def _check_optional(name: str, value: Any) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise TelemetryRecordError(f"{name}: expected a number of bytes or null")
