"""Memory samples as metrics in a real Collector: a point for each reading, at its time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from cirron_otel.core.records.memory_points import INSTRUMENTS
from cirron_otel.tools.convert.metric_source import MetricSource
from cirron_otel.tools.convert.report import Report
from tests.kit.backends import run
from tests.kit.spools.metric_recordings import (
    RECORDINGS,
    SOURCES,
    Points,
    points_of,
    records_of,
    required,
)
from tests.sdk.flush.test_sampled_metrics import run as sample
from tests.tools.conftest import COMMAND, environment

from .test_metrics import BOTH, endpoint

pytestmark = pytest.mark.backends

PROTOCOLS = ["grpc", "http/protobuf", "http/json"]
NAMES = {instrument.name for instrument in INSTRUMENTS}


def export(otelcol: run.Backend, source: str, protocol: str) -> dict[str, Any]:
    done = subprocess.run(
        [COMMAND, "export", source, "--signal", "metrics", "--json"],
        env=environment(**endpoint(otelcol, protocol)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def wait_for_points(path: Path, count: int, names: Container[str] = NAMES) -> Points:
    """The points of these metrics in the Collector's file, once it has at least `count` of them."""
    deadline = time.monotonic() + run.WAIT_SECONDS
    while True:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        points = points_of(json.loads(line) for line in lines if line.endswith("\n"))
        points = {key: series for key, series in points.items() if key[1] in names}
        if sum(map(len, points.values())) >= count:
            return points
        assert time.monotonic() < deadline, f"{len(points)} series came"
        time.sleep(run.POLL_SECONDS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", RECORDINGS)
def test_each_point_is_a_sample_at_its_time(name: str, protocol: str, tmp_path: Path) -> None:
    records = records_of(RECORDINGS[name])
    expected = required(records)
    count = sum(map(len, expected.values()))
    with run.otelcol(BOTH, tmp_path) as otelcol:
        report = export(otelcol, SOURCES[name], protocol)
        points = wait_for_points(tmp_path / "metrics.jsonl", count)
    assert points == expected
    assert (report["accepted"], report["rejected"], report["points"]) == (count, 0, count)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_live_metrics_are_the_points_of_the_spool(protocol: str, tmp_path: Path) -> None:
    spool = tmp_path / "run"
    with run.otelcol(BOTH, tmp_path) as otelcol:
        sample(spool, endpoint(otelcol, protocol), sample_interval=0.05, samples=20)
        source, report = MetricSource(str(spool), "cirron"), Report()
        stored = [json_format.MessageToDict(each) for each in source.messages(report, None)]
        expected = points_of(stored)
        points = wait_for_points(tmp_path / "metrics.jsonl", report.points or 0)
    (usage,) = [key for key in expected if key[1] == "process.memory.usage"]
    if points[usage][0] != expected[usage][0]:  # an export ahead of the first sample
        del points[usage][0]
    assert points == expected
    assert len(points[usage]) >= 20
