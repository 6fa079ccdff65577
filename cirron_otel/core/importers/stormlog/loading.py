"""The functions of the Stormlog page that load complete recordings into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .... import exactjson
from ....errors import InputError
from ...records.problems import ReadingProblem
from .events import TelemetryEvent, telemetry_event_to_dict
from .ledger import SessionLedger
from .legacy import TelemetryRecordError
from .manifests import CaptureSummary
from .markers import TimelineMarker, markers_of
from .reading import StormlogReader


class SessionNotFoundError(InputError, ValueError):
    """The recording has no session with the requested id."""

    def __init__(self, path: str | os.PathLike[str], session_id: str) -> None:
        """Name the path of the recording and the session."""
        super().__init__(
            f"{os.fspath(path)} has no session {session_id[:100]!a}:"
            " `cirron-otel stormlog sessions` lists them"
        )


@dataclass(slots=True)
class LoadedTelemetrySession:
    """A session with its events in order of time."""

    summary: CaptureSummary
    events: list[TelemetryEvent]
    sources_loaded: list[str] = field(default_factory=list)
    """The paths of the files with its events."""
    warnings: list[str] = field(default_factory=list)
    """Messages about the parts of these files that were skipped."""


def load_telemetry_sessions(
    path: str | os.PathLike[str],
    permissive_legacy: bool = True,
    events_key: str | None = None,
) -> list[LoadedTelemetrySession]:
    """Return the sessions of the recordings at `path`, the default session's status first.

    `events_key` is the key of an object's array of events. Damaged records are skipped, and are
    listed in `warnings`. Raises InputError if there is no recording, and TelemetryRecordError if
    records were skipped and none is left.
    """
    findings: list[ReadingProblem] = []
    reader = StormlogReader(
        path,
        on_finding=findings.append,
        permissive_legacy=permissive_legacy,
        events_key=events_key,
    )
    name = Path(path).name or str(Path(path).resolve())
    ledger = SessionLedger(reader.artifacts, name)
    events: dict[str, list[TelemetryEvent]] = {}
    files: dict[str, dict[str, str]] = {}
    for record in reader.records():
        fields = record.event or {}
        ledger.add(fields, record.artifact, record.file.name)
        event = TelemetryEvent(**plain(fields))
        events.setdefault(event.session_id, []).append(event)
        files.setdefault(event.session_id, {})[record.file.name] = str(record.file.path.resolve())
    if findings and not ledger.sessions():
        raise TelemetryRecordError(f"{os.fspath(path)} has no valid event: {findings[0]}")
    loaded = []
    for session in ledger.sessions():
        session_id = session.session_id
        found = sorted(events.get(session_id, ()), key=lambda event: event.timestamp_ns)
        sources = files.get(session_id, {})
        loaded.append(
            LoadedTelemetrySession(
                session.summary,
                found,
                sorted(sources.values()) or [str(Path(path).resolve())],
                [str(finding) for finding in findings if finding.name in sources],
            )
        )
    return loaded


def load_telemetry_events(
    path: str | os.PathLike[str],
    permissive_legacy: bool = True,
    events_key: str | None = None,
    session_id: str | None = None,
) -> list[TelemetryEvent]:
    """Return the events of one session in order of time: of `session_id`, or of the default one.

    Raises InputError if there is no recording, or no such session.
    """
    sessions = load_telemetry_sessions(path, permissive_legacy, events_key)
    if session_id is None:
        return next((each.events for each in sessions if each.events), [])
    for session in sessions:
        if session.summary.session_id == session_id:
            return session.events
    raise SessionNotFoundError(path, session_id)


def derive_timeline_markers(
    events: Sequence[TelemetryEvent], *, include_phase_markers: bool = True
) -> list[TimelineMarker]:
    """Return the markers of events, in order of time."""
    records = [telemetry_event_to_dict(event) for event in events]
    return markers_of(records, include_phase_markers=include_phase_markers)


def derive_session_timeline_markers(
    session: LoadedTelemetrySession, *, include_phase_markers: bool = True
) -> list[TimelineMarker]:
    """Return the markers of a loaded session, in order of time."""
    return derive_timeline_markers(session.events, include_phase_markers=include_phase_markers)


def plain(value: Any) -> Any:
    """Return a copy of `value` with Python's own numbers only, as the json module returns them."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, exactjson.Raw):
        return float(value.text)
    return value
