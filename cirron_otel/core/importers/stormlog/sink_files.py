"""Write the files of a sink: segments, and the manifest of version 2."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .discovery import SINK_FORMAT
from .ledger import CaptureSession
from .marks import LINES, plain_text_of

MANIFEST: Final = "manifest.json"
SEGMENT_EVENTS: Final = 10_000
"""Stormlog begins another segment after this number of events."""


class SinkFiles:
    """A sink that is being written into an existing directory."""

    def __init__(self, folder: Path) -> None:
        """Begin without a session."""
        self._folder = folder
        self._sessions: list[dict[str, Any]] = []
        self._segments: list[dict[str, Any]] = []

    def add_session(
        self,
        session_id: str,
        events: Iterable[dict[str, Any]],
        summary: dict[str, Any] | None = None,
    ) -> None:
        """Write the segments of a session.

        Its ledger entry is `summary`, or follows from the events.
        """
        session = CaptureSession(session_id)
        segment: list[bytes] = []
        for event in events:
            if summary is None:
                session.add(event, MANIFEST, MANIFEST)
            segment.append(plain_text_of(event, LINES))
            if len(segment) == SEGMENT_EVENTS:
                self._write(session_id, segment)
                segment = []
        if segment:
            self._write(session_id, segment)
        self._sessions.append(session.summary.to_json() if summary is None else summary)

    def _write(self, session_id: str, lines: list[bytes]) -> None:
        name = f"segment-{len(self._segments) + 1:06d}.jsonl"
        data = b"\n".join(lines) + b"\n"
        (self._folder / name).write_bytes(data)
        self._segments.append(
            {
                "filename": name,
                "event_count": len(lines),
                "size_bytes": len(data),
                "closed": True,
                "session_id": session_id,
            }
        )

    def finish(self) -> None:
        """Write the manifest."""
        self._sessions.sort(key=lambda each: (each["started_at_ns"], each["session_id"]))
        manifest = {
            "schema_version": 2,
            "format": SINK_FORMAT,
            "sessions": self._sessions,
            "segments": self._segments,
        }
        text = json.dumps(manifest, indent=2) + "\n"
        (self._folder / MANIFEST).write_bytes(text.encode())
