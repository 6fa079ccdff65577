"""Real OTLP receivers on loopback that keep the metrics that come; what a spool says of them."""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from tests.kit.sessions.whole import Whole

ExportMetrics = metrics_service_pb2.ExportMetricsServiceRequest
GRPC, HTTP = "grpc", "http/protobuf"


@dataclass
class Sink:
    """What came, in order."""

    url: str = ""
    takes_metrics: bool = True
    hangs: threading.Event | None = None
    """Requests with metrics are not answered before it is set."""
    told: Path | None = None
    """A file that is made when the first metrics have come."""
    rejected: int = 0
    """The number of points of each request that are rejected, as a partial success."""
    metrics: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    spans: int = 0

    def take(self, request: Any, headers: dict[str, str]) -> None:
        self.metrics.append(request)
        self.headers.append(headers)
        if self.told is not None:
            self.told.touch()
        if self.hangs is not None:
            self.hangs.wait(60)

    def answer(self) -> Any:
        """The response to a request that is accepted."""
        response = metrics_service_pb2.ExportMetricsServiceResponse()
        if self.rejected:
            response.partial_success.rejected_data_points = self.rejected
            response.partial_success.error_message = "too old"
        return response

    def of(self, session: str) -> list[Any]:
        """The requests of one session."""
        return [request for request in self.metrics if session_of(request) == session]


def attributes(record: Any) -> dict[str, Any]:
    """Attributes as a dict of plain values."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in record.attributes
    }


def session_of(request: Any) -> str:
    (group,) = request.resource_metrics
    return str(attributes(group.resource)["cirron.session.id"])


def by_name(request: Any) -> dict[str, Metric]:
    """The metrics of a request; a name stands once."""
    (group,) = request.resource_metrics
    (scope,) = group.scope_metrics
    assert scope.scope.name == "cirron"
    found = {metric.name: metric for metric in scope.metrics}
    assert len(found) == len(scope.metrics)
    return found


def points(metric: Metric) -> list[Any]:
    """Its data points, of whatever kind."""
    return list(getattr(metric, metric.WhichOneof("data")).data_points)


def phases(metrics: dict[str, Metric], name: str = "cirron.phase.duration") -> dict[str, Any]:
    """The points of a histogram by phase."""
    if name not in metrics:
        return {}
    return {attributes(point)["cirron.phase"]: point for point in points(metrics[name])}


def numbers(metric: Metric, key: str) -> dict[str, float]:
    """The values of a sum or gauge by one attribute."""
    return {
        attributes(point)[key]: getattr(point, point.WhichOneof("value"))
        for point in points(metric)
    }


# --- what the spool says --------------------------------------------------------------------------


def spool_lengths(found: Whole) -> dict[str, list[int]]:
    """Lengths in ns: of steps that are in no step under "", of phases under their name."""
    spans = found.spans
    lengths: dict[str, list[int]] = defaultdict(list)
    for span in spans.values():
        length = span["end_ns"] - span["start_ns"]
        if span["name"] == "step" and not _is_in_step(span, spans):
            lengths[""].append(length)
            continue
        parent = spans.get(span["parent_id"], {"name": "", "parent_id": None})
        step = spans.get(parent["parent_id"]) if parent["name"] == "micro_step" else parent
        is_phase = step is not None and step["name"] == "step" and not _is_in_step(step, spans)
        if is_phase and span["name"] != "micro_step":
            lengths[span["name"]].append(length)
    return dict(lengths)


def _is_in_step(span: dict[str, Any], spans: dict[str, dict[str, Any]]) -> bool:
    above = spans.get(span["parent_id"])
    while above is not None:
        if above["name"] == "step":
            return True
        above = spans.get(above["parent_id"])
    return False


# --- receivers ------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    sink: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        status, answer = 200, b""
        if self.path != "/v1/metrics":
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            self.sink.spans += count(request)
        elif self.sink.takes_metrics:
            self.sink.take(ExportMetrics.FromString(body), dict(self.headers.items()))
            answer = self.sink.answer().SerializeToString()
        else:
            status = 404
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        pass


def count(request: Any) -> int:
    """Spans in a request."""
    return sum(len(scope.spans) for group in request.resource_spans for scope in group.scope_spans)


@contextmanager
def http_sink(sink: Sink) -> Iterator[Sink]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"sink": sink}))
    server.daemon_threads, server.block_on_close = True, False
    sink.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        if sink.hangs is not None:
            sink.hangs.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        headers = {str(key): str(value) for key, value in context.invocation_metadata()}
        self._sink.take(request, headers)
        return self._sink.answer()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(self, request: Any, _: grpc.ServicerContext) -> Any:  # noqa: N802
        self._sink.spans += count(request)
        return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def grpc_sink(sink: Sink) -> Iterator[Sink]:
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(sink), server)
    if sink.takes_metrics:
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(sink), server)
    sink.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield sink
    finally:
        if sink.hangs is not None:
            sink.hangs.set()
        server.stop(None).wait()


SINKS = {HTTP: http_sink, GRPC: grpc_sink}
