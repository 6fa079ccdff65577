"""OTLP/JSON log records → LogsData, by the rules of `json_decode`."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.logs.v1.logs_pb2 import LogsData, SeverityNumber

from .json_decode import (
    ATTRIBUTES,
    RESOURCE,
    SCOPE,
    Kind,
    Unknown,
    any_value,
    many,
    one,
    read_document,
)
from .json_parse import parse_into
from .json_scalars import enum, hex_id, string, uint32, uint64

_RECORD = Kind(
    "LogRecord",
    {
        "time_unix_nano": uint64,
        "observed_time_unix_nano": uint64,
        "severity_number": enum(SeverityNumber.items()),
        "severity_text": string,
        "dropped_attributes_count": uint32,
        "flags": uint32,
        "trace_id": hex_id,
        "span_id": hex_id,
        "event_name": string,
    },
    {"body": any_value, "attributes": ATTRIBUTES},
)
_SCOPE_LOGS = Kind(
    "ScopeLogs", {"schema_url": string}, {"scope": one(SCOPE), "log_records": many(_RECORD)}
)
_RESOURCE_LOGS = Kind(
    "ResourceLogs",
    {"schema_url": string},
    {"resource": one(RESOURCE), "scope_logs": many(_SCOPE_LOGS)},
)
_LOGS_DATA = Kind("LogsData", {}, {"resource_logs": many(_RESOURCE_LOGS)})


def logs_from_json(data: bytes) -> tuple[LogsData, list[str]]:
    """Parse one OTLP/JSON document; return its message, and a line for each kind of loss.

    Raises InputError in the same cases as `traces_from_json`.
    """
    (message, ignored), replaced = parse_into(data, _logs_from_value)
    return message, [*replaced, *ignored]


def _logs_from_value(document: Any) -> tuple[LogsData, list[str]]:
    message, unknown = LogsData(), Unknown()
    read_document(_LOGS_DATA, document, message, unknown)
    return message, unknown.report()
