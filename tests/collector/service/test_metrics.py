from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as text_families

from cirron_otel.collector.service import metrics as m
from cirron_otel.collector.service.exporter_options import MetricsPushOptions
from cirron_otel.collector.service.metrics_push import MetricsPusher
from cirron_otel.collector.service.values import SecretHeader
from cirron_otel.errors import MissingExtraError

EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Samples = dict[tuple[str, tuple[str, ...]], float]


def counted() -> m.Registry:
    registry = m.Registry()
    registry.add(m.RECEIVED_REQUESTS, 1, "grpc", "traces")
    registry.add(m.RECEIVED_REQUESTS, 2, "grpc", "traces")
    registry.add(m.REFUSED_REQUESTS, 5, "http", "logs", 'odd "reason"\n\\')
    registry.set(m.QUEUE_BYTES, 10, "intake")
    registry.set(m.QUEUE_BYTES, 7, "intake")
    registry.observe(m.REQUEST_SECONDS, 0.004, "grpc", "traces")
    registry.observe(m.REQUEST_SECONDS, 0.005, "grpc", "traces")
    registry.observe(m.REQUEST_SECONDS, 99.0, "grpc", "traces")
    return registry


def samples(registry: m.Registry) -> Samples:
    """What the text says, by name and label values."""
    names = (*dict.fromkeys(label for metric in m.METRICS for label in metric.labels), "le")
    families = text_families(registry.render()[0].decode())
    return {
        (sample.name, tuple(sample.labels[name] for name in names if name in sample.labels)): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


class TestText:
    @pytest.mark.parametrize(
        ("accept", "families", "content_type"),
        [
            ("", text_families, PLAIN),
            ("text/plain;version=1.0.0;escaping=evil\r\nX: y", text_families, PLAIN),
            ("application/openmetrics-text;version=x;q=0.9,*/*", openmetrics_families, OPEN),
        ],
    )  # fmt: skip
    def test_both_formats(self, accept: str, families: Any, content_type: str) -> None:
        text, found = counted().render(accept)
        assert found.startswith(content_type)
        parsed = {each.name: each for each in families(text.decode())}
        received = parsed["cirron_collector_received_requests"]
        assert received.type == "counter"
        (sample,) = received.samples
        assert sample.name == "cirron_collector_received_requests_total"
        assert sample.labels == {"transport": "grpc", "signal": "traces"}
        assert sample.value == 3
        (refused,) = parsed["cirron_collector_refused_requests"].samples
        assert refused.labels["reason"] == 'odd "reason"\n\\'
        assert set(parsed) == {each.name for each in m.METRICS}

    def test_histogram_buckets_include_their_upper_bound(self) -> None:
        found = samples(counted())
        name = "cirron_collector_request_seconds"
        bucket = {key[1][2]: value for key, value in found.items() if key[0] == f"{name}_bucket"}
        assert [bucket[each] for each in ("0.0025", "0.005", "30.0", "+Inf")] == [0, 2, 2, 3]
        assert found[f"{name}_count", ("grpc", "traces")] == 3
        assert found[f"{name}_sum", ("grpc", "traces")] == pytest.approx(99.009)

    def test_gauge_reports_its_last_value_until_cleared(self) -> None:
        registry = counted()
        assert samples(registry)["cirron_collector_queue_bytes", ("intake",)] == 7
        registry.clear(m.QUEUE_BYTES, "intake")
        assert ("cirron_collector_queue_bytes", ("intake",)) not in samples(registry)

    def test_global_prometheus_registry_is_left_untouched(self) -> None:
        counted().render()
        assert b"cirron" not in prometheus_client.generate_latest(prometheus_client.REGISTRY)

    def test_without_the_extra_it_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(MissingExtraError, match=r"cirron-otel\[collector\]"):
            counted().render()

    def test_wrong_labels_are_an_error(self) -> None:
        with pytest.raises(ValueError, match="has the labels"):
            m.Registry().add(m.DUPLICATES, 1, "traces")


class TestProcesses:
    def test_figures_survive_any_serialisation(self) -> None:
        one, other = m.Registry(), counted()
        one.merge("translator", json.loads(json.dumps(other.figures())))
        assert one.render() == other.render()

    def test_the_sum_of_all_is_shown_and_the_latest_of_each(self) -> None:
        one, other = counted(), counted()
        one.merge("translator", other.figures())
        other.add(m.RECEIVED_REQUESTS, 10, "grpc", "traces")
        one.merge("translator", other.figures())
        found = samples(one)
        assert found["cirron_collector_received_requests_total", ("grpc", "traces")] == 16
        assert found["cirron_collector_queue_bytes", ("intake",)] == 14
        assert found["cirron_collector_request_seconds_count", ("grpc", "traces")] == 6

    def test_counts_of_an_ended_process_are_retained(self) -> None:
        one = m.Registry()
        one.merge("translator", counted().figures())
        one.merge("translator", counted().figures())
        one.end("translator")
        one.end("translator")
        found = samples(one)
        assert found["cirron_collector_received_requests_total", ("grpc", "traces")] == 6
        assert found["cirron_collector_request_seconds_count", ("grpc", "traces")] == 6
        assert ("cirron_collector_queue_bytes", ("intake",)) not in found

    def test_a_real_process(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=count_elsewhere, args=(theirs,))
        process.start()
        registry = m.Registry()
        for _ in range(2):
            assert ours.poll(60)
            registry.merge("translator", ours.recv())
        process.join(60)
        registry.end("translator")
        assert samples(registry)["cirron_collector_stored_batches_total", ("spool",)] == 2

    @pytest.mark.parametrize(
        "values",
        [None, 5, [["x", [], [1]]], [["cirron_collector_info", [], [1]]],
         [["cirron_collector_info", ["a"], []]], [["cirron_collector_info", ["a"], ["b"]]], [1]],
    )  # fmt: skip
    def test_invalid_figures_are_refused(self, values: Any) -> None:
        registry = m.Registry()
        with pytest.raises(ValueError, match="no figures"):
            registry.merge("translator", {"run": "a", "values": values})

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans())))
    def test_counters_never_go_down(self, events: list[tuple[str, int, bool]]) -> None:
        total, seen, shown = m.Registry(), 0, 0.0
        processes = {name: m.Registry() for name in "abc"}
        for name, amount, is_restarted in events:
            if is_restarted:
                processes[name] = m.Registry()
            processes[name].add(m.STORED_BATCHES, amount, "spool")
            seen += amount
            total.merge(name, processes[name].figures())
            values = total.totals()[m.STORED_BATCHES]
            assert values[0][1][0] >= shown
            shown = values[0][1][0]
        assert shown == seen

    def test_threads_lose_no_count(self) -> None:
        registry = m.Registry()

        def count() -> None:
            for _ in range(2000):
                registry.add(m.DUPLICATES)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert registry.totals()[m.DUPLICATES] == [((), [8000])]


def count_elsewhere(pipe: Any) -> None:
    registry = m.Registry()
    for _ in range(2):
        registry.add(m.STORED_BATCHES, 1, "spool")
        pipe.send(registry.figures())


class Received:
    """The pushes that came, and their headers."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.came = threading.Event()
        self.endpoint = ""

    def take(self, body: bytes, headers: dict[str, str]) -> bytes:
        self.requests.append(ExportMetricsServiceRequest.FromString(body))
        self.headers.append(headers)
        self.came.set()
        return ExportMetricsServiceResponse().SerializeToString()


@pytest.fixture
def grpc_server() -> Iterator[Received]:
    received = Received()
    server = grpc.server(ThreadPoolExecutor(2))

    def export(body: bytes, context: grpc.ServicerContext) -> bytes:
        return received.take(
            body, {key: str(value) for key, value in context.invocation_metadata()}
        )

    service, method = EXPORT.strip("/").split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    received.endpoint = f"http://localhost:{server.add_insecure_port('localhost:0')}"
    server.start()
    yield received
    server.stop(None)


@pytest.fixture
def http_server() -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = received.take(body, {k.lower(): v for k, v in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    received.endpoint = f"http://localhost:{server.server_port}"
    yield received
    server.shutdown()
    server.server_close()


class TestPush:
    @pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
    def test_the_same_figures_arrive(self, protocol: str, request: pytest.FixtureRequest) -> None:
        name = "grpc_server" if protocol == "grpc" else "http_server"
        received: Received = request.getfixturevalue(name)
        registry = counted()
        headers = {"x-key": SecretHeader("sesame")}
        pusher = MetricsPusher(
            registry,
            MetricsPushOptions(
                endpoint=received.endpoint, protocol=protocol, headers=headers, interval_s=0.05
            ),
        )
        pusher.start()
        assert received.came.wait(60)
        registry.add(m.RECEIVED_REQUESTS, 100, "grpc", "traces")
        assert pusher.stop(60)
        assert received.headers[0]["x-key"] == "sesame"
        self.check(registry, received.requests[-1])

    def check(self, registry: m.Registry, request: ExportMetricsServiceRequest) -> None:
        (resource,) = request.resource_metrics
        names = {each.key: each.value.string_value for each in resource.resource.attributes}
        assert names["service.name"] == "cirron-otel-collector"
        pushed = {each.name: each for each in resource.scope_metrics[0].metrics}
        assert set(pushed) == {each.name for each, values in registry.totals().items() if values}
        received = pushed["cirron_collector_received_requests"].sum
        assert received.is_monotonic
        assert received.aggregation_temporality == 2
        (point,) = received.data_points
        assert point.as_double == 103
        assert point.start_time_unix_nano == registry.started_ns < point.time_unix_nano
        assert {each.key: each.value.string_value for each in point.attributes} == {
            "transport": "grpc",
            "signal": "traces",
        }
        (gauge,) = pushed["cirron_collector_queue_bytes"].gauge.data_points
        assert gauge.as_double == 7
        (histogram,) = pushed["cirron_collector_request_seconds"].histogram.data_points
        assert (histogram.count, sum(histogram.bucket_counts)) == (3, 3)
        assert tuple(histogram.explicit_bounds) == m.BOUNDS
        assert histogram.sum == pytest.approx(99.009)
        assert not histogram.HasField("min")

    def test_an_endpoint_that_is_away_does_not_matter(self) -> None:
        options = MetricsPushOptions(endpoint="http://localhost:1", protocol="http/protobuf")
        pusher = MetricsPusher(counted(), options)
        pusher.start()
        pusher.stop(0.1)
        assert pusher.stop(60)
