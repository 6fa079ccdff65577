"""Answers questions about recordings with the real Stormlog; one JSON line each way.

A question is `[name, argument, …]`. The answer is `{"value": …}`, or `{"error": "…"}` if Stormlog
raises an exception.
"""

import json
import sys

from stormlog import session as sessions_module
from stormlog.phases import PhaseReplayIndex, phase_attribution_to_payload, resolve_phase_for_event
from stormlog.telemetry import (
    load_telemetry_events,
    load_telemetry_sessions,
    telemetry_event_from_record,
    telemetry_event_to_dict,
    validate_telemetry_record,
)
from stormlog.timeline_markers import derive_session_timeline_markers, timeline_marker_to_dict

SUMMARY = (
    "session_id", "status", "started_at_ns", "ended_at_ns", "host", "pid", "job_id", "rank",
    "local_rank", "world_size", "source",
)  # fmt: skip


def sessions(path, events_key=None):
    loaded = load_telemetry_sessions(path, events_key=events_key)
    default = sessions_module.select_default_loaded_session(loaded)
    return {
        "default_session": None if default is None else default.summary.session_id,
        "sessions": [
            {
                **{name: getattr(each.summary, name) for name in SUMMARY},
                "event_count": len(each.events),
                "event_types": _types(each.events),
                "events": [telemetry_event_to_dict(event) for event in each.events],
            }
            for each in loaded
        ],
    }


def _types(events):
    counts = {}
    for event in events:
        counts[event.event_type] = counts.get(event.event_type, 0) + 1
    return counts


def timeline(path):
    result = []
    for each in load_telemetry_sessions(path):
        index = PhaseReplayIndex.from_events(each.events)
        result.append({
            "session_id": each.summary.session_id,
            "markers": [
                timeline_marker_to_dict(marker) for marker in derive_session_timeline_markers(each)
            ],
            "attribution": [
                {
                    "timestamp_ns": event.timestamp_ns,
                    "rank": event.rank,
                    "event_type": event.event_type,
                    "phase_attribution": phase_attribution_to_payload(
                        resolve_phase_for_event(index, event)
                    ),
                }
                for event in each.events
            ],
            "spans": [
                [span.rank, span.scope_id, span.start_ns, span.end_ns, span.synthetic_end]
                for span in index.spans_for(session_id=each.summary.session_id)
            ],
        })  # fmt: skip
    return result


def event(record):
    return telemetry_event_to_dict(telemetry_event_from_record(record))


def verify(record):
    validate_telemetry_record(record)
    return True


def default_events(path, session_id=None):
    return [event.timestamp_ns for event in load_telemetry_events(path, session_id=session_id)]


QUESTIONS = {
    "sessions": sessions, "timeline": timeline, "event": event, "verify": verify,
    "default_events": default_events,
}  # fmt: skip


def main():
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"value": QUESTIONS[name](*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
