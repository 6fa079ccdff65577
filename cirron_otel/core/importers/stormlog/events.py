"""Telemetry events: their fields, their strict validation, and their canonical form.

A record has schema version 4, 3 or 2, or none (a legacy record). The canonical form of a record has
every field: versions 3 and 4 keep their version, version 2 and legacy records become version 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from .legacy import TelemetryRecordError, canonical_identity, legacy_event

VERSIONS = (2, 3, 4)
LATEST_OF_THE_PAGE = 3
LEGACY = 0
"""The version of a record without `schema_version`."""

Natural = Annotated[int, msgspec.Meta(ge=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
_TEXTS = ("event_type", "collector", "host", "session_id", "job_id")
Positive = Annotated[int, msgspec.Meta(ge=1)]


class _Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of every version; the counters of version 4 may be null."""

    schema_version: int
    timestamp_ns: Natural
    event_type: Text
    collector: Text
    sampling_interval_ms: Natural
    pid: Annotated[int, msgspec.Meta(ge=-1)]
    host: Text
    device_id: int
    allocator_active_bytes: Natural | None
    allocator_inactive_bytes: Natural | None
    device_free_bytes: Natural | None
    device_total_bytes: Natural | None
    context: str | None
    metadata: dict[str, Any]
    job_id: Text | None = None
    rank: Natural = 0
    local_rank: Natural | msgspec.UnsetType = msgspec.UNSET
    """The rank, if it is missing."""
    world_size: Positive = 1


class _Version2(_Common, kw_only=True):
    allocator_allocated_bytes: Natural
    allocator_reserved_bytes: Natural
    allocator_change_bytes: int
    device_used_bytes: Natural


class _Version3(_Version2, kw_only=True):
    session_id: Text


class _Version4(_Common, kw_only=True):
    session_id: Text
    allocator_allocated_bytes: Natural | None
    allocator_reserved_bytes: Natural | None
    allocator_change_bytes: int | None
    device_used_bytes: Natural | None


_SCHEMAS: dict[int, type[_Common]] = {2: _Version2, 3: _Version3, 4: _Version4}
FIELDS = (
    "schema_version", "session_id", "timestamp_ns", "event_type", "collector",
    "sampling_interval_ms", "pid", "host", "job_id", "rank", "local_rank", "world_size",
    "device_id", "allocator_allocated_bytes", "allocator_reserved_bytes",
    "allocator_active_bytes", "allocator_inactive_bytes", "allocator_change_bytes",
    "device_used_bytes", "device_free_bytes", "device_total_bytes", "context", "metadata",
)  # fmt: skip
"""The fields of an event in the order in which Stormlog's JSON export writes them."""


@dataclass(slots=True)
class TelemetryEvent:
    """One event in its canonical form; sizes in bytes, an unknown one is None."""

    schema_version: int
    session_id: str
    timestamp_ns: int
    event_type: str
    collector: str
    sampling_interval_ms: int
    pid: int
    host: str
    device_id: int
    allocator_allocated_bytes: int | None
    allocator_reserved_bytes: int | None
    allocator_active_bytes: int | None
    allocator_inactive_bytes: int | None
    allocator_change_bytes: int | None
    device_used_bytes: int | None
    device_free_bytes: int | None
    device_total_bytes: int | None
    context: str | None
    job_id: str | None = None
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    metadata: dict[str, Any] = field(default_factory=dict)


def version_of(record: Mapping[str, Any]) -> int:
    """Return a record's schema version; 0 for a legacy record.

    Raises TelemetryRecordError for any other version.
    """
    if "schema_version" not in record:
        return LEGACY
    version = record["schema_version"]
    if type(version) is not int:
        raise TelemetryRecordError(
            f"schema_version is {_shown(version)}: expected an integer, 2, 3 or 4"
        )
    if version not in VERSIONS:
        raise TelemetryRecordError(
            f"schema_version {_shown(version)} is not supported: expected 2, 3 or 4"
            + ("; update cirron-otel to read a later one" if version > max(VERSIONS) else "")
        )
    return version


def validate_telemetry_record(record: Mapping[str, Any]) -> None:
    """Check a record strictly against the schema of its version.

    Raises TelemetryRecordError if the record is a legacy record, has an unsupported version, lacks
    a field, has an unknown field, or has a value that the schema does not allow.
    """
    if not isinstance(record, Mapping):
        raise TelemetryRecordError(f"expected a record, a mapping, found {_shown(record)}")
    version = version_of(record)
    if version == LEGACY:
        raise TelemetryRecordError("schema_version is missing: expected 2, 3 or 4")
    check_fields(record, version)
    if version == 4:
        _check_capabilities(record)


def check_fields(record: Mapping[str, Any], version: int) -> None:
    """Check the fields of a record of this version. Raises TelemetryRecordError."""
    try:
        fields = msgspec.convert(record, _SCHEMAS[version])
    except msgspec.ValidationError as error:
        raise TelemetryRecordError(_reason(str(error))) from None
    local_rank = fields.rank if fields.local_rank is msgspec.UNSET else fields.local_rank
    for name, rank in (("rank", fields.rank), ("local_rank", local_rank)):
        if rank >= fields.world_size:
            raise TelemetryRecordError(
                f"{name} is {rank}: expected less than world_size, {fields.world_size}"
            )
    if (
        fields.event_type.isspace() or fields.collector.isspace() or fields.host.isspace()
        or (fields.job_id is not None and fields.job_id.isspace())
        or (version != 2 and record["session_id"].isspace())
    ):  # fmt: skip
        raise _blank(record)
    total = fields.device_total_bytes
    if total is not None:
        for name in ("device_used_bytes", "device_free_bytes"):
            if record[name] is not None and record[name] > total:
                raise TelemetryRecordError(
                    f"{name} is {record[name]}: expected at most device_total_bytes, {total}"
                )


def _blank(record: Mapping[str, Any]) -> TelemetryRecordError:
    name = next(each for each in _TEXTS if str(record.get(each, "x")).isspace())
    return TelemetryRecordError(f"{name} is blank: expected text")


_SUPPORTED_FIELDS = (
    "allocator_allocated", "allocator_reserved", "allocator_active", "allocator_inactive",
    "device_used", "device_free", "device_total",
)  # fmt: skip


class _Capabilities(msgspec.Struct, forbid_unknown_fields=True):
    """`metadata.memory_capabilities` of a version-4 record."""

    backend: Text
    telemetry_collector: Text
    sampling_source: Text
    supports_allocator_allocated: bool
    supports_allocator_reserved: bool
    supports_allocator_active: bool
    supports_allocator_inactive: bool
    supports_device_used: bool
    supports_device_free: bool
    supports_device_total: bool
    supports_native_allocator_history: bool
    supports_fragmentation_analysis: bool
    supports_allocator_attribution: bool
    supports_bounded_profiling: bool


def _check_capabilities(record: Mapping[str, Any]) -> None:
    place = "metadata.memory_capabilities"
    try:
        found = msgspec.convert(record["metadata"].get("memory_capabilities"), _Capabilities)
    except msgspec.ValidationError as error:
        raise TelemetryRecordError(f"{place}: {_reason(str(error))}") from None
    for name in ("backend", "telemetry_collector", "sampling_source"):
        if getattr(found, name).isspace():
            raise TelemetryRecordError(f"{place}: {name} is blank: expected text")
    for name in _SUPPORTED_FIELDS:
        if not getattr(found, f"supports_{name}") and record[f"{name}_bytes"] is not None:
            raise TelemetryRecordError(
                f"{name}_bytes is {record[f'{name}_bytes']}: expected null,"
                f" because {place}.supports_{name} is false"
            )
    if not found.supports_allocator_allocated and record["allocator_change_bytes"] is not None:
        raise TelemetryRecordError(
            "allocator_change_bytes is not null: expected null,"
            f" because {place}.supports_allocator_allocated is false"
        )


def canonical_event(
    record: Mapping[str, Any],
    *,
    permissive_legacy: bool = True,
    default_collector: str = "legacy.unknown",
    default_sampling_interval_ms: int = 0,
    default_session_id: str | None = None,
) -> dict[str, Any]:
    """Return a record's canonical form, with every field; values are not copied.

    A record of version 2, or a legacy one, that has no session id gets `default_session_id`, or
    else one derived from its content. Raises TelemetryRecordError if the record has none.
    """
    version = version_of(record)
    if version == LEGACY:
        if not permissive_legacy:
            raise TelemetryRecordError(
                "schema_version is missing: expected 2, 3 or 4, since legacy records are refused"
            )
        event = legacy_event(
            record, default_collector, default_sampling_interval_ms, default_session_id
        )
        check_fields(event, LATEST_OF_THE_PAGE)
        return event
    if version != 2:
        check_fields(record, version)
        if version == 4 and "memory_capabilities" in record["metadata"]:
            _check_capabilities(record)
        return _complete(record)
    without = {name: value for name, value in record.items() if name != "session_id"}
    check_fields(without, version)
    session = canonical_identity(record, default_session_id)
    return _complete({**without, "schema_version": LATEST_OF_THE_PAGE, "session_id": session})


def _complete(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a valid record with the optional fields: the record itself if it has them."""
    if len(record) == len(FIELDS) and type(record) is dict:
        return record
    rank = record.get("rank", 0)
    return {"job_id": None, "rank": rank, "local_rank": rank, "world_size": 1, **record}


def telemetry_event_from_record(
    record: Mapping[str, Any],
    permissive_legacy: bool = True,
    default_collector: str = "legacy.unknown",
    default_sampling_interval_ms: int = 0,
    default_session_id: str | None = None,
) -> TelemetryEvent:
    """Return the event of a record of any version, see `canonical_event`.

    Raises TelemetryRecordError (a ValueError) if the record is not valid, or if it is a legacy
    record and `permissive_legacy` is false.
    """
    if not isinstance(record, Mapping):
        raise TelemetryRecordError(f"expected a record, a mapping, found {_shown(record)}")
    event = canonical_event(
        record,
        permissive_legacy=permissive_legacy,
        default_collector=default_collector,
        default_sampling_interval_ms=default_sampling_interval_ms,
        default_session_id=default_session_id,
    )
    return TelemetryEvent(**{**event, "metadata": dict(event["metadata"])})


def telemetry_event_to_dict(event: TelemetryEvent) -> dict[str, Any]:
    """Return an event as a record, in the order of Stormlog's JSON export."""
    return {name: getattr(event, name) for name in FIELDS}


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _reason(text: str) -> str:
    """Return msgspec's message with the field in front: `pid: expected int, got str`."""
    message, _, path = text.partition(" - at `$.")
    for start, problem in _FIELD_PROBLEMS.items():
        if message.startswith(start):
            return f"{message.removeprefix(start).strip('`')} {problem}"
    message = message[:1].lower() + message[1:]
    return f"{path.rstrip('`')}: {message}" if path else message


_FIELD_PROBLEMS = {
    "Object missing required field ": "is missing: expected every field of the schema",
    "Object contains unknown field ": "is not a field of the schema: expected its fields only",
}
