"""`export --signal metrics` into a real Collector: its file has a point for each reading."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends import run
from tests.cli.conftest import COMMAND, environment
from tests.metrics.recordings import RECORDINGS, points_of, records_of, required, spool_of

from .test_metrics import BOTH

pytestmark = pytest.mark.backends

PROTOCOLS = ["grpc", "http/protobuf", "http/json"]


def export(otelcol: run.Backend, spool: Path, protocol: str) -> dict[str, Any]:
    url = f"http://{otelcol.otlp_grpc}" if protocol == "grpc" else otelcol.otlp_http
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    done = subprocess.run(
        [COMMAND, "export", str(spool), "--signal", "metrics", "--json"],
        env=environment(**variables), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def wait_for(found: Callable[[], Any], count: int, what: str) -> Any:
    """The result of `found` once it has at least `count` points."""
    deadline = time.monotonic() + run.WAIT_SECONDS
    while sum(map(len, (points := found()).values())) < count:
        assert time.monotonic() < deadline, f"{len(points)} series of {what} came"
        time.sleep(run.POLL_SECONDS)
    return points


def points_in(path: Path) -> Any:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return points_of(json.loads(line) for line in lines if line.endswith("\n"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", RECORDINGS)
def test_each_point_is_a_sample_at_its_time(name: str, protocol: str, tmp_path: Path) -> None:
    records = records_of(RECORDINGS[name])
    expected = required(records)
    count = sum(map(len, expected.values()))
    spool, place = spool_of(records, tmp_path / "run"), tmp_path / "otelcol"
    place.mkdir()
    with run.otelcol(BOTH, place) as otelcol:
        report = export(otelcol, spool, protocol)
        points = wait_for(lambda: points_in(place / "metrics.jsonl"), count, "points")
    assert points == expected
    assert (report["accepted"], report["rejected"], report["points"]) == (count, 0, count)
