"""Stormlog's telemetry: the functions that the Stormlog page names, without Stormlog.

docs/stormlog.md describes the formats, and the differences from Stormlog's own functions.
"""

from __future__ import annotations

from .events import (
    TelemetryEvent,
    telemetry_event_from_record,
    telemetry_event_to_dict,
    validate_telemetry_record,
)
from .legacy import TelemetryRecordError
from .loading import (
    LoadedTelemetrySession,
    derive_session_timeline_markers,
    derive_timeline_markers,
    load_telemetry_events,
    load_telemetry_sessions,
)
from .markers import TimelineMarker, timeline_marker_to_dict

__all__ = [
    "LoadedTelemetrySession",
    "TelemetryEvent",
    "TelemetryRecordError",
    "TimelineMarker",
    "derive_session_timeline_markers",
    "derive_timeline_markers",
    "load_telemetry_events",
    "load_telemetry_sessions",
    "telemetry_event_from_record",
    "telemetry_event_to_dict",
    "timeline_marker_to_dict",
    "validate_telemetry_record",
]
