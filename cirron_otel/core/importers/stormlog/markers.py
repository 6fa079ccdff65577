"""Timeline markers, which are derived from events and phases and never stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from .replay import ReplayedPhase, replay

Kind = Literal["lifecycle", "collector", "alert", "oom", "phase", "annotation"]
Severity = Literal["info", "warning", "critical"]
_POINTS: dict[str, tuple[Kind, Severity, str]] = {
    "start": ("lifecycle", "info", "Tracking started"),
    "stop": ("lifecycle", "info", "Tracking stopped"),
    "collector_degraded": ("collector", "warning", "Collector degraded"),
    "collector_recovered": ("collector", "info", "Collector recovered"),
    "warning": ("alert", "warning", "Warning"),
    "critical": ("alert", "critical", "Critical alert"),
    "error": ("alert", "critical", "Error"),
}
"""The events that become point markers: kind, severity, and the label of one without a context."""
_OOM_KEYS = ("oom_reason", "oom_dump_path")
ANNOTATION = "annotation"
"""The source of the markers that users wrote."""


@dataclass(frozen=True, slots=True)
class TimelineMarker:
    """A landmark of a session; times in nanoseconds since the epoch."""

    session_id: str
    start_ns: int
    end_ns: int | None
    """None for a point marker."""
    kind: Kind
    source: str
    severity: Severity
    label: str
    rank: int
    local_rank: int
    world_size: int
    event_type: str
    metadata: dict[str, Any] = field(default_factory=dict)


def timeline_marker_to_dict(marker: TimelineMarker) -> dict[str, Any]:
    """Return a marker as a JSON object."""
    return {each.name: getattr(marker, each.name) for each in fields(marker)}


def point_marker(event: Mapping[str, Any]) -> TimelineMarker | None:
    """Return the marker of an event in its canonical form; None if the event is not a landmark."""
    found = _POINTS.get(event["event_type"])
    if found is None:
        return None
    kind, severity, label = found
    if event["event_type"] == "error" and any(key in event["metadata"] for key in _OOM_KEYS):
        kind, label = "oom", _oom_label(event["metadata"].get("oom_reason"))
    return TimelineMarker(
        session_id=event["session_id"], start_ns=event["timestamp_ns"], end_ns=None, kind=kind,
        source="telemetry_event", severity=severity, label=event["context"] or label,
        rank=event["rank"], local_rank=event["local_rank"], world_size=event["world_size"],
        event_type=event["event_type"], metadata=dict(event["metadata"]),
    )  # fmt: skip


def _oom_label(reason: Any) -> str:
    is_text = isinstance(reason, str) and reason.strip()
    return f"OOM detected: {reason}" if is_text else "OOM detected"


def phase_marker(phase: ReplayedPhase, local_rank: int, world_size: int) -> TimelineMarker:
    """Return the interval marker of a closed phase."""
    return TimelineMarker(
        session_id=phase.session_id, start_ns=phase.start_ns, end_ns=phase.end_ns, kind="phase",
        source="phase_replay", severity="info", label=f"Phase: {phase.label}", rank=phase.rank,
        local_rank=local_rank, world_size=world_size, event_type="phase",
        metadata={
            "phase_path": list(phase.path),
            "scope_id": phase.scope_id,
            "thread_id": phase.thread_id,
            "thread_name": phase.thread_name,
            "sequence": phase.sequence,
            "synthetic_end": phase.synthetic_end,
        },
    )  # fmt: skip


def annotation_marker(
    session_id: str,
    time_ns: int,
    label: str,
    *,
    rank: int = 0,
    local_rank: int = 0,
    world_size: int = 1,
    metadata: Mapping[str, Any] | None = None,
) -> TimelineMarker:
    """Return the marker of a text that a user wrote during the session."""
    return TimelineMarker(
        session_id=session_id, start_ns=time_ns, end_ns=None, kind="annotation", source=ANNOTATION,
        severity="info", label=label, rank=rank, local_rank=local_rank, world_size=world_size,
        event_type=ANNOTATION, metadata=dict(metadata or {}),
    )  # fmt: skip


def markers_of(
    events: Sequence[Mapping[str, Any]],
    *,
    include_phase_markers: bool = True,
    annotations: Iterable[TimelineMarker] = (),
    last_ns: Mapping[int, int] | None = None,
) -> list[TimelineMarker]:
    """Return the markers of events in their canonical form, in order of time.

    `annotations` are markers that users wrote. `last_ns` is described at `replay`.
    """
    markers = [marker for event in events if (marker := point_marker(event)) is not None]
    if include_phase_markers:
        identities: dict[tuple[str, int], tuple[int, int]] = {}
        for event in events:
            identities.setdefault(
                (event["session_id"], event["rank"]), (event["local_rank"], event["world_size"])
            )
        for phase in replay(events, last_ns):
            markers.append(phase_marker(phase, *identities[(phase.session_id, phase.rank)]))
    return sort_markers([*markers, *annotations])


def sort_markers(markers: Iterable[TimelineMarker]) -> list[TimelineMarker]:
    """Return markers in order of start, end, rank, kind and label."""
    return sorted(markers, key=_order)


def _order(marker: TimelineMarker) -> tuple[int, int, int, str, str, int]:
    end = marker.start_ns if marker.end_ns is None else marker.end_ns
    return (
        marker.start_ns, end, marker.rank, marker.kind, marker.label,
        marker.metadata.get("sequence", 0) if marker.kind == "phase" else 0,
    )  # fmt: skip


def by_rank(markers: Iterable[TimelineMarker]) -> dict[int, list[TimelineMarker]]:
    """Return the markers of each rank."""
    ranks: dict[int, list[TimelineMarker]] = {}
    for marker in markers:
        ranks.setdefault(marker.rank, []).append(marker)
    return dict(sorted(ranks.items()))
