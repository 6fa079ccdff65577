"""An OTLP endpoint over HTTP that keeps which spans each request brought."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData


class Sink:
    """What came."""

    def __init__(self) -> None:
        self.url = ""
        self.window = 0
        """The caller's: what happens now, for `requests`."""
        self.requests: list[tuple[int, frozenset[bytes]]] = []
        """(window, span ids) of each request, in order."""
        self.spans = 0
        self.is_kept = True
        """Whether `requests` is filled."""
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        message = TracesData.FromString(body)
        ids = [
            span.span_id
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.spans += len(ids)
            if self.is_kept:
                self.requests.append((self.window, frozenset(ids)))

    def ids(self) -> set[bytes]:
        return {some_id for _, ids in self.requests for some_id in ids}

    def repeated(self) -> tuple[int, set[bytes]]:
        """How many spans came again, and those of them that should not have: a span may come again
        if the request before was the last one of its window, or came in an odd window.
        """
        last = {window: number for number, (window, _) in enumerate(self.requests)}
        before: Counter[bytes] = Counter()
        wrong: set[bytes] = set()
        settled: set[bytes] = set()
        for number, (window, ids) in enumerate(self.requests):
            wrong |= ids & settled
            before.update(ids)
            if window % 2 == 0 and number != last[window]:
                settled |= ids
        return sum(count - 1 for count in before.values()), wrong


@contextlib.contextmanager
def sink() -> Iterator[Sink]:
    """One that listens."""
    found = Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found.take(body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # the collector was killed
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def config_of(folder: Path, endpoint: Sink) -> Path:
    """The configuration of a collector with a target of each kind."""
    path = folder / "collector.yaml"
    path.write_text(
        f"storage: {{url: 'sqlite:///{folder}/rows.db'}}\n"
        f"blobs: {{url: '{folder}/blobs'}}\ndrain_s: 60\n"
        f"exporters: [{{type: otlp, endpoint: '{endpoint.url}', protocol: http/protobuf}}]\n"
    )
    return path
