"""`cirron-otel run` sends the status and the findings of its job as metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.findings.finding import Finding
from cirron_otel.core.run.findings.live import LiveConclusion
from cirron_otel.tools.cli.finding_metrics import STATUS, FindingMetrics
from tests.kit.servers.metrics_sink import (
    GRPC,
    HTTP,
    SINKS,
    Sink,
    attributes,
    by_name,
    numbers,
    points,
)

from .running import program, run

KIND = "cirron.finding.kind"


def to(sink: Sink, protocol: str = HTTP, **more: str) -> dict[str, str]:
    path = "/v1/metrics" if protocol == HTTP else ""
    return {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": sink.url + path,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_METRIC_EXPORT_INTERVAL": "50", **more,
    }  # fmt: skip


def of_job(sink: Sink) -> list[dict[str, Any]]:
    """The metrics of each request of the job itself, by name."""
    found = [by_name(each) for each in sink.metrics]
    return [each for each in found if "cirron.status" in each]


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_the_last_export_has_the_conclusion(protocol: str, tmp_path: Path) -> None:
    with SINKS[protocol](Sink()) as sink:
        variables = to(sink, protocol, CIRRON_RUN_NAME="mine")
        done = run(tmp_path, "--", *program("slow_loader", 40), env=variables)
    assert done.returncode == 0
    assert "INPUT_BOUND" in done.stderr
    *_, last = of_job(sink)
    (status,) = points(last["cirron.status"])
    assert status.as_int == STATUS["critical"]
    assert attributes(status)["cirron.run.name"] == "mine"
    assert "cirron.rank" not in attributes(status)
    assert numbers(last["cirron.findings"], KIND)["INPUT_BOUND"] == 1
    assert last["cirron.finding.cost"].unit == "s"
    assert 0.1 < numbers(last["cirron.finding.cost"], KIND)["INPUT_BOUND"] < 1


def test_findings_are_sent_while_the_job_runs(tmp_path: Path) -> None:
    """The job ends only after the finding has arrived."""
    told = tmp_path / "told"
    with SINKS[HTTP](Sink()) as sink:
        take = sink.take

        def seen(request: Any, headers: dict[str, str]) -> None:
            take(request, headers)
            if any("INPUT_BOUND" in numbers(each["cirron.findings"], KIND)
                   for each in of_job(sink) if "cirron.findings" in each):  # fmt: skip
                told.touch()

        sink.take = seen  # type: ignore[method-assign]
        done = run(tmp_path, "-q", "--", *program("slow_loader", 60, told), env=to(sink))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("variables", [
    {"CIRRON_METRICS": "false"}, {"OTEL_METRICS_EXPORTER": "none"}, {"CIRRON_OUTPUT": "none"},
])  # fmt: skip
def test_nothing_is_sent_without_metrics_or_a_spool(
    variables: dict[str, str], tmp_path: Path
) -> None:
    with SINKS[HTTP](Sink()) as sink:
        done = run(tmp_path, "-q", "--", *program("slow_loader", 5), env=to(sink, **variables))
    assert (done.returncode, done.stderr) == (0, "")
    assert of_job(sink) == []


def test_an_endpoint_without_metrics_is_not_reported_unless_it_is_requested(
    tmp_path: Path,
) -> None:
    with SINKS[HTTP](Sink(takes_metrics=False)) as sink:
        general = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_EXPORTER_OTLP_PROTOCOL": HTTP,
                   "OTEL_METRIC_EXPORT_INTERVAL": "50"}  # fmt: skip
        silent = run(tmp_path, "-q", "--", *program("slow_loader", 30), env=general)
        named = {**general, "OTEL_METRICS_EXPORTER": "otlp", "CIRRON_QUIET": "true"}
        told = run(tmp_path, "-q", "--", *program("slow_loader", 30), env=named)
    assert (silent.returncode, told.returncode) == (0, 0)
    assert "findings" not in silent.stderr
    assert told.stderr.count("the findings were not sent as metrics: HTTP 404") == 1


def test_an_invalid_setting_is_reported_and_the_command_runs(tmp_path: Path) -> None:
    with SINKS[HTTP](Sink()) as sink:
        wrong = to(sink, OTEL_EXPORTER_OTLP_METRICS_PROTOCOL="pigeon")
        done = run(tmp_path, "-q", "--", "true", env=wrong)
    assert done.returncode == 0
    assert "no findings are sent as metrics: " in done.stderr
    assert "pigeon" in done.stderr


def finding(kind: str, cost_ns: int | None, severity: Any = "warning") -> Finding:
    return Finding(kind, severity, cost_ns, None, "")


def test_a_kind_that_has_ended_is_sent_as_zero() -> None:
    metrics = FindingMetrics.__new__(FindingMetrics)
    metrics._costs, metrics._counts = {}, {}
    rounds = [
        [finding("SPIKES", 10**9), finding("SPIKES", 2 * 10**9), finding("NON_FINITE", None),
         finding("FORWARD_HEAVY", 5, "notice")],
        [finding("INPUT_BOUND", 500_000_000)],
    ]  # fmt: skip
    expected: list[Any] = [
        ({"SPIKES": 2, "NON_FINITE": 1}, {"SPIKES": 3.0}),
        ({"SPIKES": 0, "NON_FINITE": 0, "INPUT_BOUND": 1}, {"SPIKES": 0.0, "INPUT_BOUND": 0.5}),
    ]
    for findings, values in zip(rounds, expected, strict=True):
        metrics._take(LiveConclusion(findings, "warning", "", "step", 1, None))
        assert (metrics._counts, metrics._costs) == values
