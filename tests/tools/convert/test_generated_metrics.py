"""Generated records of Stormlog: every point is a reading at its time, and counts match."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel.tools.convert import metric_source
from cirron_otel.tools.convert.metric_source import MetricSource
from cirron_otel.tools.convert.report import Report
from tests.kit.spools.metric_recordings import (
    Record,
    points_of,
    required,
    spool_of,
)

EVENTS = ["sample", "sample", "allocation", "deallocation", "peak", "warning", "critical", "start",
          "stop", "phase_enter", "phase_exit", "error", "cleanup"]  # fmt: skip
BYTES = st.integers(0, 2**62)
METADATA = [
    {}, {}, {}, {"collector_health_status": "healthy"}, {"collector_health_status": "degraded"},
    {"collector_health_status": "failed", "telemetry_partial": True},
    {"collector_health_status": None, "collector_retry_interval_ms": 5},
]  # fmt: skip
MAYBE = st.one_of(st.none(), BYTES)


@st.composite
def records(draw: Any) -> list[Record]:
    """Records of several sessions and devices, each event a little later than the one before."""
    time_ns = draw(st.integers(0, 2**62))
    result = []
    for _ in range(draw(st.integers(1, 30))):
        time_ns += draw(st.integers(1, 10**9))
        rank, device = draw(st.integers(0, 2)), draw(st.integers(-1, 2))
        collector = "stormlog.cpu_tracker" if device == -1 else "stormlog.cuda_tracker"
        result.append({
            "schema_version": 3, "session_id": f"00000000-0000-4000-8000-00000000000{rank}",
            "timestamp_ns": time_ns, "event_type": draw(st.sampled_from(EVENTS)),
            "collector": collector, "sampling_interval_ms": 50, "pid": 100 + rank, "host": "h",
            "job_id": None, "rank": rank, "local_rank": rank, "world_size": 3, "device_id": device,
            "allocator_allocated_bytes": draw(BYTES), "allocator_reserved_bytes": draw(MAYBE),
            "allocator_active_bytes": draw(MAYBE), "allocator_inactive_bytes": draw(MAYBE),
            "allocator_change_bytes": draw(st.integers(-(2**62), 2**62)),
            "device_used_bytes": draw(MAYBE), "device_free_bytes": draw(MAYBE),
            "device_total_bytes": draw(MAYBE), "context": None,
            "metadata": draw(st.sampled_from(METADATA)),
        })  # fmt: skip
    return result


@settings(max_examples=60, deadline=None)
@given(records(), st.integers(1, 40), st.integers(1, 50))
def test_counts_match(given_records: list[Record], in_batch: int, in_message: int) -> None:
    before, metric_source.POINTS = metric_source.POINTS, in_message
    report, found = Report(), {}
    try:
        with tempfile.TemporaryDirectory() as directory:
            spool = spool_of(given_records, Path(directory) / "run", in_batch)
            for message in MetricSource(str(spool), "cirron").messages(report, None):
                for key, series in points_of([json_format.MessageToDict(message)]).items():
                    found.setdefault(key, []).extend(series)
    finally:
        metric_source.POINTS = before
    expected = required(given_records)
    assert found == expected
    assert (report.points or 0) == sum(map(len, expected.values()))
    assert report.exit_code == 0
