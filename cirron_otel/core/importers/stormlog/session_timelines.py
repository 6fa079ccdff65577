"""The timelines of the sessions of recordings: markers, and the attribution of samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .annotations import Annotation
from .ledger import CaptureSession, SessionLedger
from .loading import plain
from .markers import (
    TimelineMarker,
    annotation_marker,
    by_rank,
    markers_of,
    timeline_marker_to_dict,
)
from .reading import StormlogReader
from .replay import PHASE_ENTER, PHASE_EXIT, PhaseAttribution, attribute_all

ATTRIBUTED = frozenset({"sample", "warning", "critical", "error"})
"""The events whose attribution a timeline contains: samples and alerts."""
_LANDMARKS = ATTRIBUTED | {
    "start", "stop", "collector_degraded", "collector_recovered", PHASE_ENTER, PHASE_EXIT,
}  # fmt: skip
_ORIGIN = ("origin_phase_scope_id", "origin_thread_id")


@dataclass(slots=True)
class SessionTimeline:
    """The timeline of one session."""

    session: CaptureSession
    events: list[dict[str, Any]] = field(default_factory=list)
    """The events that matter to a timeline, in order of time."""
    annotations: list[Annotation] = field(default_factory=list)
    """The texts that users wrote during the session."""

    def markers(self) -> list[TimelineMarker]:
        """Return the markers, in order of time."""
        summary = self.session.summary
        annotations = [
            annotation_marker(
                each.session_id,
                each.time_ns,
                each.label,
                rank=summary.rank,
                local_rank=summary.local_rank,
                world_size=summary.world_size,
                metadata={"name": each.name, "text": each.text, "scope_id": each.scope_id},
            )
            for each in self.annotations
        ]
        return markers_of(self.events, annotations=annotations, last_ns=self.session.last_ns)

    def attribution(self) -> Iterator[tuple[dict[str, Any], PhaseAttribution[Any] | None]]:
        """Yield the samples and alerts in order of time, with their attributions."""
        found = {id(event): attribution for event, attribution in attribute_all(self.events)}
        for event in self.events:
            if event["event_type"] in ATTRIBUTED:
                yield event, found[id(event)]

    def to_json(self) -> dict[str, Any]:
        """Return the timeline as `stormlog timeline --json` shows it."""
        markers = self.markers()
        attribution = [
            {
                "timestamp_ns": event["timestamp_ns"],
                "rank": event["rank"],
                "event_type": event["event_type"],
                "phase_attribution": None if found is None else found.to_json(),
            }
            for event, found in self.attribution()
        ]
        return {
            "session_id": self.session.session_id,
            "markers": [timeline_marker_to_dict(marker) for marker in markers],
            "markers_by_rank": {
                str(rank): [timeline_marker_to_dict(marker) for marker in of_rank]
                for rank, of_rank in by_rank(markers).items()
            },
            "attribution": attribution,
        }


def session_timelines(
    reader: StormlogReader, session_id: str | None, annotations: Iterable[Annotation] = ()
) -> list[SessionTimeline]:
    """Return the timelines of all sessions, or of one, in the order of the ledger.

    `annotations` are texts of any session. Memory grows with the samples, alerts and phases.
    """
    ledger = SessionLedger(reader.artifacts, reader.path.name)
    events: dict[str, list[dict[str, Any]]] = {}
    for record in reader.records():
        event = record.event or {}
        ledger.add(event, record.artifact, record.file.name)
        if event["event_type"] in _LANDMARKS and session_id in (None, event["session_id"]):
            events.setdefault(event["session_id"], []).append(_outline(event))
    texts: dict[str, list[Annotation]] = {}
    for annotation in annotations:
        texts.setdefault(annotation.session_id, []).append(annotation)
    timelines = []
    for session in ledger.sessions():
        if session_id in (None, session.session_id):
            found = events.get(session.session_id, [])
            found.sort(key=lambda event: event["timestamp_ns"])
            written = texts.get(session.session_id, [])
            timelines.append(SessionTimeline(session, found, written))
    return timelines


def _outline(event: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an event that a timeline needs."""
    metadata = event["metadata"]
    if event["event_type"] == "sample":
        metadata = {key: metadata[key] for key in _ORIGIN if key in metadata}
    names = ("session_id", "rank", "local_rank", "world_size", "timestamp_ns", "event_type")
    return {
        **{name: event[name] for name in names},
        "context": event["context"],
        "metadata": plain(metadata),
    }
