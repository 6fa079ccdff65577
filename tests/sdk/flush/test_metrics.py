"""OTLP metrics beside the spans: what arrives is what the spool holds."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.metrics_sink import (
    GRPC,
    HTTP,
    SINKS,
    Sink,
    attributes,
    by_name,
    numbers,
    phases,
    points,
    session_of,
    spool_lengths,
)
from tests.kit.servers.serving import serving
from tests.kit.sessions.processes import environment
from tests.kit.sessions.whole import Whole, whole

PROGRAM = Path(__file__).parents[1] / "programs" / "metrics" / "measured.py"
both = pytest.mark.parametrize("protocol", [HTTP, GRPC])


def run(directory: Path, env: dict[str, str], **options: Any) -> tuple[dict[str, Any], str]:
    """What the program said, and what it logged."""
    done = subprocess.run(
        [sys.executable, PROGRAM, directory, json.dumps(options)],
        env=environment(CIRRON_QUIET="true", **env),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout), done.stderr


def to(sink: Sink, protocol: str, **more: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        **more,
    }


def check_lengths(point: Any, lengths: list[int]) -> None:
    """An explicit histogram's point is of these lengths."""
    bounds = list(point.explicit_bounds)
    counts = [0] * (len(bounds) + 1)
    for length in lengths:
        counts[bisect_left(bounds, length / 1e9)] += 1
    assert list(point.bucket_counts) == counts
    assert point.count == len(lengths)
    assert point.sum == pytest.approx(sum(lengths) / 1e9, rel=1e-12)
    assert (point.min, point.max) == (min(lengths) / 1e9, max(lengths) / 1e9)


def check_exemplars(point: Any, found: Whole, name: str) -> None:
    """They point at spans of that name, and say their length and end."""
    assert point.exemplars
    by_span = {span["id"][:16]: span for span in found.spans.values()}
    for exemplar in point.exemplars:
        span = by_span[exemplar.span_id.hex()]
        assert span["name"] == name
        assert exemplar.trace_id.hex() == trace_id_of(span, found)
        assert exemplar.as_double == (span["end_ns"] - span["start_ns"]) / 1e9
        assert exemplar.time_unix_nano == span["end_ns"]


def trace_id_of(span: dict[str, Any], found: Whole) -> str:
    (batch,) = [each for each in found.batches if span in each["spans"]]
    return str(span.get("otel", {}).get("trace_id") or batch["otel"]["trace_id"])


def last(found: Whole, name: str) -> float:
    marks = [mark for mark in found.marks if mark["name"] == name and mark["kind"] == "point"]
    return float(max(marks, key=lambda mark: mark["ts_ns"])["value"])


def check(request: Any, found: Whole) -> None:
    """The last request of a session, cumulative, is what its spool holds."""
    metrics = by_name(request)
    lengths = spool_lengths(found)
    (step,) = points(metrics["cirron.step.duration"])
    check_lengths(step, lengths.pop(""))
    told = phases(metrics)
    assert told.keys() == lengths.keys()
    for name, point in told.items():
        check_lengths(point, lengths[name])
    assert metrics["cirron.step.duration"].unit == "s"


class TestExportedMetrics:
    @both
    def test_metrics_match_the_spool(self, protocol: str, tmp_path: Path) -> None:
        with SINKS[protocol](Sink()) as sink:
            gzip = {"OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "gzip"}
            said, log = run(tmp_path, to(sink, protocol, **gzip), segment_records=40)
        assert log == ""
        assert said["done"]
        assert said["health"]["swallowed_errors"] == {}
        found = whole(tmp_path)
        (request,) = sink.metrics
        check(request, found)
        metrics = by_name(request)
        assert len({trace_id_of(span, found) for span in found.spans.values()}) > 2
        (step,) = points(metrics["cirron.step.duration"])
        check_exemplars(step, found, "step")
        for name, point in phases(metrics).items():
            check_exemplars(point, found, name)
        gauge = metrics["cirron.mark.train_loss"]
        assert numbers(gauge, "cirron.mark.name") == {"Train Loss": last(found, "Train Loss")}
        assert numbers(metrics["cirron.mark.step"], "cirron.mark.name") == {"step": 9.0}
        accuracy = numbers(metrics["cirron.mark.accuracy"], "cirron.mark.name")
        assert accuracy == {"accuracy": last(found, "accuracy")}
        (diverged,) = points(metrics["cirron.mark.diverged"])
        assert math.isnan(diverged.as_double), "which is what a dashboard is to show"
        assert "cirron.mark.epoch_loss" not in metrics, "a summary is no point"
        (samples,) = points(metrics["cirron.samples"])
        assert samples.as_int == 8 * step.count == 160
        (memory,) = points(metrics["process.memory.usage"])
        assert memory.as_int > 1 << 20
        drops = numbers(metrics["cirron.drops"], "cirron.reason")
        assert drops == said["health"]["drops"]
        assert metrics["cirron.drops"].sum.is_monotonic
        assert said["health"]["metrics"]["exports"] == 1
        assert "Proxy" in said["global"], "the application's provider is its own affair"
        assert said["late"] == [], "a child forked meanwhile would have half of a module for good"

    def test_is_of_the_resource_that_the_spans_are_of(self, tmp_path: Path) -> None:
        with SINKS[HTTP](Sink()) as sink:
            rank = {"RANK": "3", "WORLD_SIZE": "4", "OTEL_SERVICE_NAME": "trainer"}
            said, _ = run(tmp_path, to(sink, HTTP, **rank))
        (group,) = sink.metrics[0].resource_metrics
        resource = attributes(group.resource)
        assert resource["cirron.session.id"] == said["session"]
        assert resource["cirron.rank"] == 3
        assert resource["service.name"] == "trainer"
        assert resource["process.pid"] == whole(tmp_path).sessions[0]["pid"]
        keys = ("cirron.rank", "cirron.run.id", "cirron.run.name")
        for metric in by_name(sink.metrics[0]).values():
            for point in points(metric):
                assert [attributes(point)[key] for key in keys] == [resource[key] for key in keys]

    def test_units_places_and_time_outside_of_steps_match_the_spool(self, tmp_path: Path) -> None:
        with SINKS[HTTP](Sink()) as sink:
            run(tmp_path, to(sink, HTTP))
        metrics = by_name(sink.metrics[-1])
        spans = whole(tmp_path).spans.values()
        steps = [span for span in spans if span["name"] == "step"]
        assert numbers(metrics["cirron.units"], "cirron.unit") == {"step": len(steps)}
        final = max(steps, key=lambda span: span["end_ns"])["attrs"]
        for key in ("epoch", "global_step"):
            (point,) = points(metrics[f"cirron.{key}"])
            assert point.as_int == final[key]
        outside = numbers(metrics["cirron.outside.time"], "cirron.account")
        evaluations = [span for span in spans if span["name"] == "eval"]
        total_ns = sum(span["end_ns"] - span["start_ns"] for span in evaluations)
        assert outside["evaluation"] == pytest.approx(total_ns / 1e9)
        (session,) = [span for span in spans if span["name"] == "cirron.session"]
        inside_ns = sum(span["end_ns"] - span["start_ns"] for span in steps)
        extent_ns = session["end_ns"] - session["start_ns"]
        assert sum(outside.values()) == pytest.approx((extent_ns - inside_ns) / 1e9)
        assert metrics["cirron.outside.time"].sum.is_monotonic

    def test_phase_metrics_cover_only_recorded_phases_under_thinning(self, tmp_path: Path) -> None:
        with SINKS[HTTP](Sink()) as sink:
            said, _ = run(tmp_path, to(sink, HTTP), detail_every=10, detail_slow_factor=1e6)
        found = whole(tmp_path)
        assert said["health"]["drops"]["scopes_thinned"] > 0
        (request,) = sink.metrics
        check(request, found)
        (step,) = points(by_name(request)["cirron.step.duration"])
        assert step.count == 20 > phases(by_name(request))["forward"].count

    @both
    def test_in_parts_that_add_up(self, protocol: str, tmp_path: Path) -> None:
        """Delta and exponential, many exports."""
        env = {
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
            "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": (
                "base2_exponential_bucket_histogram"
            ),
            "OTEL_METRIC_EXPORT_INTERVAL": "5",
        }
        told = tmp_path / "told"
        with SINKS[protocol](Sink(told=told)) as sink:
            said, _ = run(tmp_path / "run", to(sink, protocol, **env), told=str(told))
        assert said["health"]["metrics"]["exports"] == len(sink.metrics) > 1
        lengths = spool_lengths(whole(tmp_path / "run"))
        steps = [
            point
            for request in sink.metrics
            if (metric := by_name(request).get("cirron.step.duration")) is not None
            for point in metric.exponential_histogram.data_points
        ]
        assert sum(point.count for point in steps) == len(lengths[""])
        assert sum(point.sum for point in steps) == pytest.approx(sum(lengths[""]) / 1e9)
        assert all(sum(p.positive.bucket_counts) == p.count for p in steps)
        ends = [point.time_unix_nano for point in steps]
        assert all(b.start_time_unix_nano <= e for b, e in zip(steps, ends, strict=True))
        drops = [by_name(request)["cirron.drops"].sum for request in sink.metrics]
        assert {each.aggregation_temporality for each in drops} == {1}, "delta"
        samples = [
            points(metric)[0].as_int
            for request in sink.metrics
            if (metric := by_name(request).get("cirron.samples")) is not None
        ]
        assert sum(samples) == 160

    @pytest.mark.parametrize(("filter_", "has_any"), [("trace_based", False), ("always_on", True)])
    def test_exemplar_filter_applies_to_unsampled_traces(
        self, filter_: str, has_any: bool, tmp_path: Path
    ) -> None:
        env = {"OTEL_TRACES_SAMPLER": "always_off", "OTEL_METRICS_EXEMPLAR_FILTER": filter_}
        with SINKS[HTTP](Sink()) as sink:
            run(tmp_path, to(sink, HTTP, **env))
        check(sink.metrics[0], whole(tmp_path))
        (step,) = points(by_name(sink.metrics[0])["cirron.step.duration"])
        assert bool(step.exemplars) == has_any
        assert sink.spans == 0

    @both
    def test_each_forked_child_exports_separate_metrics(
        self, protocol: str, tmp_path: Path
    ) -> None:
        with SINKS[protocol](Sink()) as sink:
            said, log = run(tmp_path, to(sink, protocol), fork=True)
        assert log == ""
        found = whole(tmp_path)
        assert {session["id"] for session in found.sessions} == set(map(session_of, sink.metrics))
        assert len(sink.metrics) == 3
        for session in found.sessions:
            (request,) = sink.of(session["id"])
            check(request, found.of(session["pid"]))
        (mine,) = sink.of(said["session"])
        assert points(by_name(mine)["cirron.step.duration"])[0].count == 30


class TestOff:
    @pytest.mark.parametrize(
        "env",
        [
            {"CIRRON_METRICS": "false"},
            {"OTEL_METRICS_EXPORTER": "none"},
            {"OTEL_SDK_DISABLED": "true"},
            {"CIRRON_EXPORTERS": "none"},
        ],
    )
    def test_nothing_is_sent_or_imported(self, env: dict[str, str], tmp_path: Path) -> None:
        with SINKS[HTTP](Sink()) as sink:
            said, _ = run(tmp_path, to(sink, HTTP, **env))
        assert sink.metrics == []
        assert said["modules"] == []
        assert said["health"]["metrics"] is None

    def test_no_metrics_modules_are_loaded_without_an_endpoint(self, tmp_path: Path) -> None:
        said, _ = run(tmp_path, {})
        assert said["modules"] == []

    def test_metrics_alone(self, tmp_path: Path) -> None:
        with SINKS[HTTP](Sink()) as sink:
            env = {
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{sink.url}/v1/metrics",
                "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": HTTP,
                "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "x-tenant=a%20b",
            }
            said, _ = run(tmp_path, env)
        check(sink.metrics[0], whole(tmp_path))
        assert sink.headers[0]["x-tenant"] == "a b"
        assert said["health"]["targets"] == []


class TestFailure:
    @both
    def test_a_dead_endpoint_costs_one_line(self, protocol: str, tmp_path: Path) -> None:
        user = "me:hidden1@" if protocol == HTTP else ""  # gRPC knows no users in a URL
        env = {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://{user}127.0.0.1:9/v1/metrics",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "authorization=hidden2,no header hidden3",
            "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "1.5",
            "OTEL_METRIC_EXPORT_INTERVAL": "20",
        }
        said, log = run(tmp_path, env, timeout=20)
        assert said["done"], "the spans have no part in it"
        assert len(spool_lengths(whole(tmp_path))[""]) == 20
        assert said["health"]["metrics"]["failures"] >= 1
        assert said["health"]["swallowed_errors"]["metrics export"] >= 1
        assert log.count("metrics export: ") == 1, log
        assert "127.0.0.1:9" in log
        assert "refused" in log
        assert "1 of its entries ignored" in log
        assert len(log.splitlines()) == 2
        assert "hidden" not in log + json.dumps(said)

    @both
    def test_an_endpoint_that_takes_spans_alone_is_let_be(
        self, protocol: str, tmp_path: Path
    ) -> None:
        """As Jaeger's and Tempo's."""
        with SINKS[protocol](Sink(takes_metrics=False)) as sink:
            said, log = run(tmp_path, to(sink, protocol))
        assert sink.spans >= len(whole(tmp_path).spans)
        assert said["done"]
        assert (log, said["health"]["swallowed_errors"]) == ("", {})
        metrics = said["health"]["metrics"]
        assert metrics["failures"] == 1
        assert "404" in metrics["last_error"] or "UNIMPLEMENTED" in metrics["last_error"]

    @pytest.mark.slow
    def test_cirron_collector_rejecting_metrics_is_counted_silently(self, tmp_path: Path) -> None:
        with serving(tmp_path / "collector") as here:
            for protocol, url in ((GRPC, f"http://{here.grpc}"), (HTTP, here.http)):
                said, log = run(tmp_path / protocol[:4], to(Sink(url), protocol))
                assert (log, said["done"]) == ("", True)
                assert said["health"]["metrics"]["failures"] == 1

    def test_unless_metrics_were_asked_for_by_name(self, tmp_path: Path) -> None:
        with SINKS[HTTP](Sink(takes_metrics=False)) as sink:
            said, log = run(tmp_path, to(sink, HTTP, OTEL_METRICS_EXPORTER="otlp"))
        assert said["health"]["swallowed_errors"] == {"metrics export": 1}
        assert "/v1/metrics did not accept the metrics: HTTP 404 (Not Found)" in log

    @both
    def test_an_endpoint_that_never_answers_is_given_up(
        self, protocol: str, tmp_path: Path
    ) -> None:
        told = tmp_path / "told"
        with SINKS[protocol](Sink(hangs=threading.Event(), told=told)) as sink:
            quick = {"OTEL_METRIC_EXPORT_INTERVAL": "20"}
            env = to(sink, protocol, OTEL_EXPORTER_OTLP_METRICS_TIMEOUT="3000", **quick)
            said, log = run(tmp_path / "run", env, timeout=0.3, told=str(told))
            assert sink.metrics, "it came, and nobody answered"
        assert log.count("did not accept the last metrics in time") == 1
        assert said["health"]["swallowed_errors"] == {"metrics export": 1}

    @pytest.mark.parametrize(
        ("variable", "value", "problem"),
        [
            ("OTEL_METRIC_EXPORT_INTERVAL", "soon", "expected milliseconds"),
            ("OTEL_METRICS_EXEMPLAR_FILTER", "some", "expected trace_based"),
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "smoke", "expected grpc"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "here", "not an http:// or https:// URL"),
        ],
    )
    def test_invalid_variable_is_logged_and_counted(
        self, variable: str, value: str, problem: str, tmp_path: Path
    ) -> None:
        with SINKS[HTTP](Sink()) as sink:
            said, log = run(tmp_path, to(sink, HTTP, **{variable: value}))
        assert variable in log
        assert problem in log
        assert said["done"]
        assert said["health"]["swallowed_errors"] == {"metrics": 1}
        assert len(whole(tmp_path).sessions) == 1
