"""A real OTLP receiver over gRPC that keeps what it acknowledged: the far end of a Collector."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_SECONDS = 180.0


@dataclass
class Sink:
    """What came, in order; a request that came twice stands here twice."""

    endpoint: str
    spans: list[tuple[Resource, Span]] = field(default_factory=list)
    records: list[LogRecord] = field(default_factory=list)
    trace_requests: int = 0
    metadata: list[tuple[dict[str, str], set[str]]] = field(default_factory=list)
    """Of each request with spans: its headers, and the names of the spans in it."""

    def ids(self) -> set[bytes]:
        """The span ids that came."""
        return {span.span_id for _, span in self.spans}

    def by_trace(self) -> dict[bytes, set[bytes]]:
        """Span ids by trace id."""
        found: dict[bytes, set[bytes]] = defaultdict(set)
        for _, span in self.spans:
            found[span.trace_id].add(span.span_id)
        return dict(found)


def wait_for(sinks: list[Sink], ids: set[bytes]) -> None:
    """Wait until these spans have come, each to one of the sinks at least."""
    deadline = time.monotonic() + WAIT_SECONDS
    while missing := ids - set().union(*(sink.ids() for sink in sinks)):
        assert time.monotonic() < deadline, f"{len(missing)} of {len(ids)} spans have not come"
        time.sleep(0.02)


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(  # noqa: N802 - gRPC's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self._sink.trace_requests += 1
        spans = [
            (group.resource, span)
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        headers = {str(key): str(value) for key, value in context.invocation_metadata()}
        self._sink.metadata.append((headers, {span.name for _, span in spans}))
        self._sink.spans += spans
        return trace_service_pb2.ExportTraceServiceResponse()


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def Export(  # noqa: N802 - gRPC's name
        self, request: logs_service_pb2.ExportLogsServiceRequest, _: grpc.ServicerContext
    ) -> logs_service_pb2.ExportLogsServiceResponse:
        self._sink.records += [
            record
            for group in request.resource_logs
            for scope in group.scope_logs
            for record in scope.log_records
        ]
        return logs_service_pb2.ExportLogsServiceResponse()


@contextmanager
def otlp_sink(endpoint: str) -> Iterator[Sink]:
    """Listen at `127.0.0.1:port` until the block ends."""
    # One thread: nothing above has to be guarded.
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    sink = Sink(endpoint)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(sink), server)
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(sink), server)
    assert server.add_insecure_port(endpoint), f"{endpoint} is taken"
    server.start()
    try:
        yield sink
    finally:
        server.stop(None).wait()
