"""Manifests: the session ledger of a sink, and of the bundles of `diagnose` and of an OOM."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .events import Natural, Positive, Text

Status = Literal["running", "completed", "interrupted", "incomplete"]


_SUMMARY_KEYS = (
    "session_id", "status", "started_at_ns", "ended_at_ns", "host", "pid", "job_id", "rank",
    "local_rank", "world_size", "source",
)  # fmt: skip
"""The keys of a session, in the order of Stormlog's manifests."""


class CaptureSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a manifest describes it; times in nanoseconds since the epoch."""

    session_id: Text
    status: Status
    started_at_ns: Natural
    host: Text
    source: Text
    ended_at_ns: Natural | None = None
    pid: int = -1
    job_id: Text | None = None
    rank: Natural = 0
    local_rank: Natural = 0
    world_size: Positive = 1

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object with the manifest's keys."""
        return {name: getattr(self, name) for name in _SUMMARY_KEYS}


def summary_of(value: Any) -> CaptureSummary | None:
    """Return the session that a manifest's entry describes; None if the entry is not valid."""
    try:
        return msgspec.convert(value, CaptureSummary)
    except msgspec.ValidationError:
        return None


def entries_of(manifest: dict[str, Any], key: str) -> list[Any]:
    """Return a list of a manifest; empty if it is missing or of another kind."""
    entries = manifest.get(key)
    return entries if isinstance(entries, list) else []


def segment_sessions(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the session ids of a sink's segments, by file name."""
    sessions = {}
    for entry in entries_of(manifest, "segments"):
        if isinstance(entry, dict):
            name, session = entry.get("filename"), entry.get("session_id")
            if isinstance(name, str) and isinstance(session, str) and session.strip():
                sessions[name] = session
    return sessions


def segment_names(manifest: dict[str, Any]) -> list[str]:
    """Return the file names that a sink's manifest lists."""
    names = []
    for entry in entries_of(manifest, "segments"):
        if isinstance(entry, dict) and isinstance(name := entry.get("filename"), str):
            names.append(name)
    return names
