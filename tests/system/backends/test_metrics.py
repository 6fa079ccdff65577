"""Metrics in a real Collector, beside the spans that their exemplars point at; and a real Jaeger,
which has no use for them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.backends import run
from tests.kit.sessions.whole import whole
from tests.sdk.flush.test_metrics import run as record
from tests.sdk.flush.test_metrics import spool_lengths

pytestmark = pytest.mark.backends

BOTH = run.FILE.read_text().replace(
    "exporters:\n", 'exporters:\n  file/metrics: {path: "${env:DIR}/metrics.jsonl"}\n'
) + ("    metrics: {receivers: [otlp], exporters: [file/metrics]}\n")


def endpoint(backend: run.Backend, protocol: str) -> dict[str, str]:
    url = f"http://{backend.otlp_grpc}" if protocol == "grpc" else backend.otlp_http
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}


def wait_for_metrics(path: Path) -> dict[str, Any]:
    """The metrics of the one line that is written, by name."""
    deadline = time.monotonic() + run.WAIT_SECONDS
    while not path.exists() or not (text := path.read_text()).endswith("\n"):
        assert time.monotonic() < deadline, "no metrics came"
        time.sleep(run.POLL_SECONDS)
    (line,) = text.splitlines()
    (group,) = json.loads(line)["resourceMetrics"]
    (scope,) = group["scopeMetrics"]
    return {metric["name"]: metric for metric in scope["metrics"]}


def _attributes(point: Any) -> dict[str, Any]:
    return {each["key"]: each["value"] for each in point["attributes"]}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_metrics_and_exemplars_in_the_collector_match_the_spool(
    protocol: str, tmp_path: Path
) -> None:
    place, spool = tmp_path / "otelcol", tmp_path / "run"
    place.mkdir()
    with run.otelcol(BOTH, place) as otelcol:
        said, log = record(spool, endpoint(otelcol, protocol))
        found = whole(spool)
        spans = run.spans_of(otelcol.wait_for_spans({each[:16] for each in found.spans}))
        metrics = wait_for_metrics(place / "metrics.jsonl")
    assert (said["done"], log) == (True, "")
    lengths = spool_lengths(found)
    (step,) = metrics["cirron.step.duration"]["histogram"]["dataPoints"]
    assert int(step["count"]) == len(lengths[""])
    assert step["sum"] == pytest.approx(sum(lengths[""]) / 1e9)
    steps = {(span["traceId"], span["spanId"]) for span in spans if span["name"] == "step"}
    assert {(each["traceId"], each["spanId"]) for each in step["exemplars"]} <= steps
    phases = {
        _attributes(point)["cirron.phase"]["stringValue"]: int(point["count"])
        for point in metrics["cirron.phase.duration"]["histogram"]["dataPoints"]
    }
    assert phases == {name: len(some) for name, some in lengths.items() if name}
    (loss,) = metrics["cirron.mark.train_loss"]["gauge"]["dataPoints"]
    assert loss["asDouble"] == 0.1


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_jaeger_receives_spans_and_rejected_metrics_log_nothing(
    protocol: str, jaeger: run.Jaeger, tmp_path: Path
) -> None:
    said, log = record(tmp_path, endpoint(jaeger, protocol))
    assert (said["done"], log, said["health"]["swallowed_errors"]) == (True, "", {})
    assert said["health"]["metrics"]["failures"] == 1
    assert jaeger.wait_for_trace(said["session"], 1)
