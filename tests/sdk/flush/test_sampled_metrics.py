"""The live metrics of the sampler: the points that the marks in the spool give, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from cirron_otel.sdk.flush import measures as module
from cirron_otel.sdk.flush.measures import Measures
from cirron_otel.sdk.session.errors import errors
from cirron_otel.sdk.session.sampled_metrics import sampled_metrics
from cirron_otel.sdk.tracing.buffers import local
from cirron_otel.sdk.tracing.clock import now, wall
from cirron_otel.sdk.tracing.mark import POINT, SampleAttributes, mark
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.tools.convert.metric_source import MetricSource
from cirron_otel.tools.convert.report import Report
from tests.kit.servers.metrics_sink import (
    GRPC,
    HTTP,
    SINKS,
    Sink,
)
from tests.kit.sessions.processes import environment
from tests.kit.spools.metric_recordings import Points, attributes_of, points_of
from tests.sdk.conftest import OpenSession
from tests.sdk.tracing.test_measures import measured

from .test_metrics import to

PROGRAM = Path(__file__).parents[1] / "programs" / "metrics" / "sampled.py"
SAMPLED = {"process.memory.usage", "process.cpu.utilization"}
CUDA = {"backend": "cuda", "process_rss_bytes": 70, "device_used_bytes": 30}


def run(directory: Path, env: dict[str, str], **options: Any) -> dict[str, Any]:
    """Run the program, and return its health."""
    done = subprocess.run(
        [sys.executable, PROGRAM, directory, json.dumps(options)],
        env=environment(OTEL_METRIC_EXPORT_INTERVAL="200", CIRRON_QUIET="true", **env),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    health: dict[str, Any] = json.loads(done.stdout)
    return health


def documents(sink: Sink) -> list[dict[str, Any]]:
    return [json_format.MessageToDict(request) for request in sink.metrics]


def numbers_of(sink: Sink) -> Points:
    """The points of the instruments of samples."""
    messages = documents(sink)
    for message in messages:
        scope = message["resourceMetrics"][0]["scopeMetrics"][0]
        scope["metrics"] = [each for each in scope["metrics"] if each["name"] in SAMPLED]
    return points_of(messages)


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_each_sample_is_sent_once(protocol: str, tmp_path: Path) -> None:
    with SINKS[protocol](Sink()) as sink:
        health = run(tmp_path, to(sink, protocol), sample_interval=0.02, samples=30)
    assert health["swallowed_errors"] == {}
    assert len(sink.metrics) > 1
    source = MetricSource(str(tmp_path), "cirron")
    stored = [json_format.MessageToDict(each) for each in source.messages(Report(), None)]
    expected = points_of(stored)
    found = numbers_of(sink)
    (usage,) = [key for key in expected if key[1] == "process.memory.usage"]
    # Until the first sample, the current resident set is exported, at the time of the export.
    while found[usage] and found[usage][0] != expected[usage][0]:
        del found[usage][0]
    assert found == expected
    assert len(found[usage]) == health["sampling"]["samples"]
    names = {
        metric["name"]
        for message in documents(sink)
        for metric in message["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    }
    assert {name for name in names if name.startswith("cirron.mark")} == {"cirron.mark.memory"}
    live, later = (
        attributes_of(message["resourceMetrics"][0]["resource"])
        for message in (documents(sink)[-1], stored[0])
    )
    assert live == later


def test_without_a_sampler_each_export_has_one_resident_set_point(tmp_path: Path) -> None:
    with SINKS[HTTP](Sink()) as sink:
        run(tmp_path, to(sink, HTTP), sample_interval=None, samples=-1)
    ((usage, points),) = numbers_of(sink).items()
    assert usage[1] == "process.memory.usage"
    assert len(points) == len(sink.metrics)


def sample(name: str, value: Any, at: int, **attrs: Any) -> None:
    """Make a mark as the sampler does."""
    scope = Scope("forward")
    with scope:
        local.b.marks.append((scope, name, value, at, POINT, SampleAttributes(attrs)))


class TestMeasures:
    def test_devices_and_alerts(self, session: OpenSession) -> None:
        at = now()
        for device in (0, 1):
            sample("memory", 20 + device, at, device_id=device, **CUDA)
            sample("hw.power", 90.5, at, **{"hw.id": f"cuda:{device}"})
        sample("memory.warning", 30, at, limit="cuda:0")
        sample("memory.degraded", "host", at, error="OSError")
        mark("memory", 1)
        measures = measured(session)
        points = measures.points()
        assert {point.time_ns for point in points} == {wall(at)}
        assert [(p.instrument.name, dict(p.attributes), p.value) for p in points] == [
            ("hw.gpu.memory.usage", {"hw.id": "cuda:0"}, 30),
            ("cirron.memory.allocator",
             {"hw.id": "cuda:0", "cirron.memory.kind": "allocated"}, 20),
            ("process.memory.usage", {}, 70),
            ("hw.power", {"hw.id": "cuda:0", "hw.type": "gpu"}, 90.5),
            ("hw.gpu.memory.usage", {"hw.id": "cuda:1"}, 30),
            ("cirron.memory.allocator",
             {"hw.id": "cuda:1", "cirron.memory.kind": "allocated"}, 21),
            ("hw.power", {"hw.id": "cuda:1", "hw.type": "gpu"}, 90.5),
        ]  # fmt: skip
        assert measures.points() == []
        assert measures.marks() == {"memory": 1.0}
        assert measures.is_process_sampled

    def test_points_that_wait_are_bounded(
        self, session: OpenSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MOST_POINTS", 3)
        start = now()
        for number in range(5):
            sample("process.cpu.utilization", number, start + number)
        measures = measured(session)
        assert [point.value for point in measures.points()] == [2, 3, 4]
        assert errors.counts == {"metrics": 1}

    def test_no_points_are_stored_if_nothing_is_sent(self, session: OpenSession) -> None:
        measures = Measures()
        measures.is_off = True
        sample("process.cpu.utilization", 0.5, now())
        assert measured(session, measures).points() == []


def test_the_start_of_sums() -> None:
    measures = Measures()
    at = time.time_ns()
    mark_ = {"name": "memory", "value": 5, "attrs": {"backend": "cpu"}, "ts_ns": at}
    (metric,) = sampled_metrics(module.memory_points(mark_), measures.start_ns)
    (point,) = metric.data.data_points
    assert (point.time_unix_nano, point.value, point.attributes) == (at, 5, {})
    assert point.start_time_unix_nano == measures.start_ns
    assert (metric.name, metric.unit) == ("process.memory.usage", "By")
