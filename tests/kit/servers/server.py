"""A real OTLP/HTTP receiver on loopback, which parses and keeps all requests."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class OtlpServer(ThreadingHTTPServer):
    """Answers `/v1/traces` with `status`, or with `rejected` spans as a partial success."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        """The headers of each request, with names in lower case."""
        self.paths = {"/v1/traces"}
        """The paths that accept requests; all others return 404."""
        self.status = 200
        self.rejected = 0
        self.received = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def environ(self) -> dict[str, str]:
        """The variables that point an exporter here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }

    def span_ids(self) -> list[bytes]:
        return [
            span.span_id
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def trace_ids(self) -> set[str]:
        return {
            span.trace_id.hex()
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OtlpServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.headers.append({key.lower(): value for key, value in self.headers.items()})
        status = self.server.status if self.path in self.server.paths else 404
        if status == 200:
            self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        response = ExportTraceServiceResponse()
        if self.server.rejected:
            response.partial_success.rejected_spans = self.server.rejected
            response.partial_success.error_message = "too many spans"
        answer = response.SerializeToString()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.server.received.set()

    def log_message(self, *_: Any) -> None:
        pass
