"""Endpoints on loopback that answer each tenant, and each span name, as a test wants.

They receive OTLP; over HTTP also Cirron's batches.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.kit.servers.servers import EXPORT

Decide = Callable[[str, str], int | None]
"""(tenant, span name) → HTTP status, or None to close the connection without an answer."""


def names_in(body: bytes) -> list[str]:
    if body.startswith(b"{"):
        return [span["name"] for span in json.loads(body)["spans"]]
    return [
        span.name
        for resource in TracesData.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


class Endpoint:
    """What came, in order, and what was accepted of it."""

    def __init__(self, decide: Decide) -> None:
        self.decide, self.url = decide, ""
        self.asked: list[tuple[str, str]] = []
        """(tenant, span name) of every request."""
        self.requests = 0
        self.before: Callable[[str], object] = lambda _: None
        """Called with the tenant of each request ahead of its answer; it may wait."""
        self.in_flight: Counter[str] = Counter()
        self.most_in_flight = self.most_of_a_tenant = 0
        """The maximum numbers of requests that waited for an answer at the same time."""
        self.accepted: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def answer(self, tenant: str, names: list[str]) -> int | None:
        with self._lock:
            self.in_flight[tenant] += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight.total())
            self.most_of_a_tenant = max(self.most_of_a_tenant, self.in_flight[tenant])
        self.before(tenant)
        with self._lock:
            self.in_flight[tenant] -= 1
            self.requests += 1
            status: int | None = 200
            for name in names:
                self.asked.append((tenant, name))
                status = self.decide(tenant, name) if status == 200 else status
            if status == 200:
                self.accepted += [(tenant, name) for name in names]
            return status

    def names(self) -> list[str]:
        return [name for _, name in self.accepted]


@contextlib.contextmanager
def http_endpoint(decide: Decide) -> Iterator[Endpoint]:
    endpoint = Endpoint(decide)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            status = endpoint.answer(self.headers.get("X-Scope-OrgID") or "", names_in(body))
            with contextlib.suppress(ConnectionError):  # the client has given up
                self._answer(status)

        def _answer(self, status: int | None) -> None:
            if status is None:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    server = Server(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()


_CODES = {code.value[0]: code for code in grpc.StatusCode}


@contextlib.contextmanager
def grpc_endpoint(decide: Decide) -> Iterator[Endpoint]:
    """The statuses are gRPC's codes; 200 is OK."""
    endpoint = Endpoint(decide)

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            tenant = dict(details.invocation_metadata).get("x-scope-orgid", "")

            def export(body: bytes, context: grpc.ServicerContext) -> bytes:
                status = endpoint.answer(str(tenant), names_in(body))
                if status != 200:
                    context.abort(_CODES[status or 14], "no")
                return b""

            return grpc.unary_unary_rpc_method_handler(export) if details.method == EXPORT else None

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    endpoint.url = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield endpoint
    finally:
        server.stop(None)
