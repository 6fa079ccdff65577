"""The sessions of recordings: their status, their counts, and the default session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .discovery import Artifact
from .manifests import CaptureSummary, Status

_STATUS_ORDER: tuple[Status, ...] = ("completed", "interrupted", "incomplete", "running")
_TRUST = ("oom", "diagnose", "file", "segment", "sink")
"""Kinds of recordings; the manifest of a later kind replaces that of an earlier one.

A bundle contains the session as it was when the bundle was written.
"""


@dataclass(slots=True)
class CaptureSession:
    """One session of a recording."""

    session_id: str
    manifest: CaptureSummary | None = None
    """The session as a manifest describes it; None if no manifest does."""
    source: str = ""
    """The name of the recording that contains its first event, if no manifest has a source."""
    event_count: int = 0
    event_types: dict[str, int] = field(default_factory=dict)
    sources: dict[str, None] = field(default_factory=dict)
    """The names of the files with its events, in order."""
    first: Mapping[str, Any] | None = None
    """The event with the lowest time."""
    last_ns: dict[int, int] = field(default_factory=dict)
    """The time of the last event of each rank, nanoseconds since the epoch."""
    stopped_ns: int | None = None
    """The time of the last `stop` event."""

    def add(self, event: Mapping[str, Any], artifact: str, file: str) -> None:
        """Add an event in its canonical form."""
        time, kind, rank = event["timestamp_ns"], event["event_type"], event["rank"]
        self.event_count += 1
        self.event_types[kind] = self.event_types.get(kind, 0) + 1
        self.sources[file] = None
        if self.first is None or time < self.first["timestamp_ns"]:
            self.first = event
        if not self.source:
            self.source = artifact
        if time > self.last_ns.get(rank, -1):
            self.last_ns[rank] = time
        if kind == "stop" and (self.stopped_ns is None or time > self.stopped_ns):
            self.stopped_ns = time

    @property
    def summary(self) -> CaptureSummary:
        """The session's summary: the manifest's, or one derived from the events.

        Without a manifest, a `stop` event makes the session `completed`, and its absence
        `incomplete`.
        """
        if self.manifest is not None or self.first is None:
            assert self.manifest is not None
            return self.manifest
        first = self.first
        return CaptureSummary(
            session_id=self.session_id,
            status="incomplete" if self.stopped_ns is None else "completed",
            started_at_ns=first["timestamp_ns"],
            ended_at_ns=self.stopped_ns,
            host=first["host"],
            pid=first["pid"],
            job_id=first["job_id"],
            rank=first["rank"],
            local_rank=first["local_rank"],
            world_size=first["world_size"],
            source=f"artifact:{self.source}",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the session as `stormlog sessions --json` shows it."""
        return {
            **self.summary.to_json(),
            "event_count": self.event_count,
            "event_types": dict(sorted(self.event_types.items())),
        }


class SessionLedger:
    """Collects the sessions of recordings; memory grows with the sessions, not with the events."""

    def __init__(self, artifacts: Iterable[Artifact] = (), name: str = "") -> None:
        """Begin with the sessions that the manifests of `artifacts` list.

        `name` is the name of the path that was given, which the source of a session contains.
        """
        self._name = name
        self._sessions: dict[str, CaptureSession] = {}
        for artifact in sorted(artifacts, key=lambda each: _TRUST.index(each.kind)):
            for summary in artifact.summaries:
                self._session(summary.session_id).manifest = summary

    def _session(self, session_id: str) -> CaptureSession:
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = CaptureSession(session_id)
        return session

    def add(self, event: Mapping[str, Any], artifact: Artifact, file: str) -> None:
        """Add an event in its canonical form, from a file of a recording."""
        self._session(event["session_id"]).add(event, artifact.name or self._name, file)

    def sessions(self) -> list[CaptureSession]:
        """Return the sessions: completed ones first, then interrupted, incomplete and running
        ones; the newest first among equals.
        """
        return sorted(self._sessions.values(), key=_order)

    def default(self) -> CaptureSession | None:
        """Return the session that is used if none is selected; None if there is no session."""
        return default_session(self.sessions())


def default_session(sessions: Sequence[CaptureSession]) -> CaptureSession | None:
    """Return the first session that has an event, else the first one."""
    with_events = (each for each in sessions if each.event_count)
    return next(with_events, sessions[0] if sessions else None)


def _order(session: CaptureSession) -> tuple[int, int, int, str]:
    summary = session.summary
    end = summary.ended_at_ns or summary.started_at_ns
    rank = _STATUS_ORDER.index(summary.status)
    return (rank, -end, -summary.started_at_ns, summary.session_id)
