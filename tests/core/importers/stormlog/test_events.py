"""The fields of events: strict validation, and the defaults of legacy records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cirron_otel.core.importers.stormlog import (
    TelemetryRecordError,
    telemetry_event_from_record,
    telemetry_event_to_dict,
    validate_telemetry_record,
)
from cirron_otel.errors import InputError

from .captures import CAPABILITIES
from .conftest import EVENTS, RECORDINGS, SEGMENT

VERSION_3 = json.loads(EVENTS[10])
VERSION_4 = json.loads(
    (RECORDINGS / "v043/distributed/sink_rank0" / SEGMENT).read_text().splitlines()[3]
)
VERSION_2 = json.loads((RECORDINGS / "v039" / "v2_records.json").read_text())[0]
REQUIRED = [
    "schema_version", "session_id", "timestamp_ns", "event_type", "collector",
    "sampling_interval_ms", "pid", "host", "device_id", "allocator_allocated_bytes",
    "allocator_reserved_bytes", "allocator_active_bytes", "allocator_inactive_bytes",
    "allocator_change_bytes", "device_used_bytes", "device_free_bytes", "device_total_bytes",
    "context", "metadata",
]  # fmt: skip
COUNTERS = ["allocator_allocated_bytes", "allocator_reserved_bytes", "allocator_change_bytes",
            "device_used_bytes"]  # fmt: skip


def convert(**fields: Any) -> dict[str, Any]:
    """Return the event of a legacy record with these fields."""
    return telemetry_event_to_dict(telemetry_event_from_record({"timestamp": 1.5, **fields}))


def test_recorded_events_are_valid() -> None:
    for line in EVENTS:
        validate_telemetry_record(json.loads(line))
    validate_telemetry_record(VERSION_2)
    validate_telemetry_record(VERSION_4)


@pytest.mark.parametrize("name", ["backend", "telemetry_collector", "sampling_source"])
@pytest.mark.parametrize("blank", ["", " ", " \t", "\u2003"])
def test_blank_capabilities_are_refused(name: str, blank: str) -> None:
    metadata = VERSION_4["metadata"]
    capabilities = {**metadata["memory_capabilities"], name: blank}
    record = {**VERSION_4, "metadata": {**metadata, "memory_capabilities": capabilities}}
    with pytest.raises(TelemetryRecordError, match=f"memory_capabilities.*{name}"):
        validate_telemetry_record(record)
    with pytest.raises(TelemetryRecordError):
        telemetry_event_from_record(record)


@pytest.mark.parametrize("name", REQUIRED)
def test_required_fields(name: str) -> None:
    record = {key: value for key, value in VERSION_3.items() if key != name}
    with pytest.raises(TelemetryRecordError, match=name):
        validate_telemetry_record(record)


def test_unknown_fields_are_rejected() -> None:
    with pytest.raises(TelemetryRecordError, match="unknown"):
        validate_telemetry_record({**VERSION_3, "unknown": 1})


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_metadata_is_an_object(value: Any) -> None:
    with pytest.raises(TelemetryRecordError, match="metadata"):
        validate_telemetry_record({**VERSION_3, "metadata": value})


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ({"rank": 0, "local_rank": 0, "world_size": 1}, True),
        ({"rank": 1, "local_rank": 1, "world_size": 2}, True),
        ({"rank": -1}, False),
        ({"local_rank": -1}, False),
        ({"world_size": 0}, False),
        ({"rank": 1, "world_size": 1}, False),
        ({"rank": 1, "local_rank": 2, "world_size": 2}, False),
    ],
)
def test_ranks(fields: dict[str, Any], is_valid: bool) -> None:
    record = {**VERSION_3, **fields}
    if is_valid:
        validate_telemetry_record(record)
    else:
        with pytest.raises(TelemetryRecordError):
            validate_telemetry_record(record)


def test_the_distributed_identity_has_defaults() -> None:
    without = {key: value for key, value in VERSION_3.items()
               if key not in ("job_id", "rank", "local_rank", "world_size")}  # fmt: skip
    event = telemetry_event_from_record(without)
    assert (event.job_id, event.rank, event.local_rank, event.world_size) == (None, 0, 0, 1)


@pytest.mark.parametrize("version", [99, 1, 0, -1, 3.0, "3", None, True, [], 2**70])
def test_other_versions_are_rejected_without_legacy_fallback(version: Any) -> None:
    record = {"timestamp": 1.0, "schema_version": version}
    for check in (validate_telemetry_record, telemetry_event_from_record):
        with pytest.raises(TelemetryRecordError, match="schema_version") as raised:
            check(record)
        assert isinstance(raised.value, InputError)
        assert isinstance(raised.value, ValueError)
        assert "\n" not in str(raised.value)


def test_a_legacy_record_is_not_strictly_valid() -> None:
    with pytest.raises(TelemetryRecordError, match="schema_version is missing"):
        validate_telemetry_record({"timestamp": 1.0})


def test_versions_3_and_4_stay_and_2_becomes_3() -> None:
    assert telemetry_event_to_dict(telemetry_event_from_record(VERSION_3)) == VERSION_3
    assert telemetry_event_to_dict(telemetry_event_from_record(VERSION_4)) == VERSION_4
    event = telemetry_event_to_dict(telemetry_event_from_record(VERSION_2))
    session = event.pop("session_id")
    assert session.startswith("legacy-")
    assert event == {**VERSION_2, "schema_version": 3}


@pytest.mark.parametrize("name", COUNTERS)
def test_a_null_of_schema_4_never_becomes_0(name: str) -> None:
    event = telemetry_event_from_record({**VERSION_4, name: None})
    assert getattr(event, name) is None
    with pytest.raises(TelemetryRecordError, match=name):
        validate_telemetry_record({**VERSION_3, name: None})


def test_capabilities_of_schema_4() -> None:
    absent = {**CAPABILITIES, "supports_device_free": False}
    for metadata, valid in (
        ({"memory_capabilities": CAPABILITIES}, True),
        ({"memory_capabilities": {**CAPABILITIES, "more": 1}}, False),
        ({"memory_capabilities": {**CAPABILITIES, "backend": ""}}, False),
        ({"memory_capabilities": absent}, False),
        ({}, False),
    ):
        record = {**VERSION_4, "device_free_bytes": 1, "metadata": metadata}
        if valid:
            validate_telemetry_record(record)
        else:
            with pytest.raises(TelemetryRecordError, match="memory_capabilities"):
                validate_telemetry_record(record)


def test_legacy_defaults() -> None:
    assert convert() == {
        "schema_version": 3, "session_id": convert()["session_id"], "timestamp_ns": 1_500_000_000,
        "event_type": "sample", "collector": "legacy.unknown", "sampling_interval_ms": 0,
        "pid": -1, "host": "unknown", "job_id": None, "rank": 0, "local_rank": 0, "world_size": 1,
        "device_id": -1, "allocator_allocated_bytes": 0, "allocator_reserved_bytes": 0,
        "allocator_active_bytes": None, "allocator_inactive_bytes": None,
        "allocator_change_bytes": 0, "device_used_bytes": 0, "device_free_bytes": None,
        "device_total_bytes": None, "context": None, "metadata": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"device": "cuda:3"}, "device_id", 3),
        ({"device": "/GPU:1"}, "device_id", 1),
        ({"device": "/GPU"}, "device_id", 0),
        ({"device": "cpu"}, "device_id", -1),
        ({"device": "mps"}, "device_id", -1),
        ({"allocator_allocated_bytes": 9}, "allocator_reserved_bytes", 9),
        ({"allocator_allocated_bytes": 9}, "device_used_bytes", 9),
        ({"memory_allocated": 9}, "allocator_allocated_bytes", 9),
        ({"memory_mb": 1.5}, "allocator_allocated_bytes", 1572864),
        ({"type": "peak"}, "event_type", "peak"),
        ({"type": "peak", "event_type": "x"}, "event_type", "x"),
        ({"metadata_note": 1, "metadata": {"a": 2}}, "metadata", {"note": 1, "a": 2}),
        ({"metadata": {"rank": 1, "world_size": 2}}, "rank", 1),
        ({"message": "m"}, "context", "m"),
    ],
)
def test_legacy_fields(fields: dict[str, Any], name: str, value: Any) -> None:
    assert convert(**fields)[name] == value


@pytest.mark.parametrize("timestamp", [None, "1", True, float("nan"), float("inf"), -1])
def test_a_legacy_record_without_a_valid_time_fails(timestamp: Any) -> None:
    with pytest.raises(TelemetryRecordError, match="timestamp"):
        telemetry_event_from_record({"timestamp": timestamp})


def test_legacy_conversion_can_be_refused() -> None:
    with pytest.raises(TelemetryRecordError, match="legacy"):
        telemetry_event_from_record({"timestamp": 1.0}, permissive_legacy=False)


def test_a_record_is_a_mapping() -> None:
    for check in (validate_telemetry_record, telemetry_event_from_record):
        with pytest.raises(TelemetryRecordError, match="mapping"):
            check([1])  # type: ignore[arg-type]


def test_very_long_numbers_of_devices_and_times() -> None:
    assert convert(device="cuda:" + "9" * 5000)["device_id"] == -1
    with pytest.raises(TelemetryRecordError, match="timestamp"):
        telemetry_event_from_record({"timestamp": 10**400})
