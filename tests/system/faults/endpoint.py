"""An OTLP/HTTP endpoint that accepts, refuses, delays and loses requests, by a seed.

The answer to a request depends on the seed, the names of its spans, and the number of attempts at
the same spans. So the parts of a batch that is sent in several requests get different answers.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

ACCEPT, PARTIAL, LIMIT, BUSY, FAULT, SLOW, HANG, RESET, LOSE = (
    "accept", "partial success", "429", "503", "500", "slow", "hang", "reset", "lose"
)  # fmt: skip
"""`LOSE` accepts the request, but resets the connection instead of answering."""
PASSING = (PARTIAL, LIMIT, BUSY, FAULT, SLOW, HANG, RESET, LOSE)
_STATUS = {ACCEPT: 200, PARTIAL: 200, SLOW: 200, LIMIT: 429, BUSY: 503, FAULT: 500}
_MOST_ATTEMPTS = 2
"""The number of attempts at the same spans that may fail; a later one is accepted."""
HANG_S = 5.0
"""How long a hanging request lasts, seconds: longer than the exporter's `timeout_s`."""
_CHANGES_EVERY = 25
"""The number of requests after which the maximum size of a request changes."""


class Answer(NamedTuple):
    """The answer to one request."""

    kind: str
    status: int
    rejected: int = 0


@dataclass(frozen=True)
class Mix:
    """The answers that a seed draws."""

    seed: int
    kinds: tuple[str, ...]
    """The kinds of PASSING in this mix."""
    failures: int
    """The number of attempts that fail. Each delays its batch by twice as long as the last one."""
    share: float
    """The share of attempts that get one of `kinds`."""
    refused: float
    """The share of spans whose requests are always answered with 400."""
    poison: float
    """The share of spans whose requests are always answered with 413."""
    limits: tuple[int, ...]
    """The maximum numbers of spans in a request, one after the other; above it the answer is 413.
    """

    def is_in(self, share: float, use: str, name: str) -> bool:
        """Whether a span is in a share of all spans."""
        return share > 0 and Random(f"{self.seed} {use} {name}").random() < share


class MixedEndpoint:
    """The spans that an endpoint accepted, rejected and refused, by their names."""

    def __init__(self, mix: Mix) -> None:
        self.mix, self.url = mix, ""
        self.accepted: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        """Spans that a partial success rejected."""
        self.refused: set[str] = set()
        """Spans in requests that were answered with 400, and single spans answered with 413."""
        self.answers: Counter[str] = Counter()
        self._attempts: Counter[frozenset[str]] = Counter()
        self._requests = self._failures = 0
        self._lock = threading.Lock()
        self.closed = threading.Event()

    def answer(self, names: list[str]) -> Answer:
        """Decide on a request, and record the decision."""
        with self._lock:
            answer = self._decide(names)
            self.answers[f"{answer.status} {answer.kind}"] += 1
            if answer.status == 400 or (answer.status == 413 and len(names) == 1):
                self.refused.update(names)
            elif answer.status == 200 and answer.kind not in (HANG, RESET):
                self.rejected.update(names[: answer.rejected])
                self.accepted.update(names[answer.rejected :])
            return answer

    def _decide(self, names: list[str]) -> Answer:
        mix = self.mix
        attempt = self._attempts[frozenset(names)]
        self._attempts[frozenset(names)] += 1
        self._requests += 1
        chance = Random(f"{mix.seed} {min(names, default='')} {len(names)} {attempt}")
        kind = ACCEPT
        if attempt < _MOST_ATTEMPTS and mix.kinds and chance.random() < mix.share:
            kind = chance.choice(mix.kinds)
        if kind not in (ACCEPT, PARTIAL, SLOW):
            self._failures += 1
            kind = kind if self._failures <= mix.failures else ACCEPT
        if kind not in (ACCEPT, PARTIAL, SLOW, LOSE):
            return Answer(kind, _STATUS.get(kind, 200))
        if any(mix.is_in(mix.poison, "poison", name) for name in names):
            return Answer("poison", 413)
        limit = mix.limits[self._requests // _CHANGES_EVERY % len(mix.limits)]
        if len(names) > limit:
            return Answer("limit", 413)
        if any(mix.is_in(mix.refused, "refused", name) for name in names):
            return Answer("refused", 400)
        rejected = chance.randint(1, len(names)) if kind == PARTIAL and names else 0
        return Answer(kind, 200, rejected)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    endpoint: MixedEndpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer = self.endpoint.answer(names_in(body))
        if answer.kind == SLOW:
            time.sleep(0.2)
        elif answer.kind == HANG:
            self.endpoint.closed.wait(HANG_S)
        if answer.kind in (HANG, RESET, LOSE):
            self._reset()
            return
        content = ExportTraceServiceResponse()
        if answer.rejected:
            content.partial_success.rejected_spans = answer.rejected
            content.partial_success.error_message = "these spans are rejected"
        data = content.SerializeToString() if answer.status == 200 else b""
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/x-protobuf")
        if answer.kind == LIMIT:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        """Close the connection with an RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client has given up
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().finish()

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def shutdown_request(self, request: Any) -> None:
        self.close_request(request)  # without a FIN, so that SO_LINGER has its effect


def names_in(body: bytes) -> list[str]:
    """Return the names of all spans in a request."""
    return [
        span.name
        for resource in TracesData.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@contextlib.contextmanager
def mixed_endpoint(mix: Mix) -> Iterator[MixedEndpoint]:
    """A listening endpoint."""
    endpoint = MixedEndpoint(mix)
    handler = type("Handler", (_Handler,), {"endpoint": endpoint})
    server = _Server(("127.0.0.1", 0), handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.closed.set()
        server.shutdown()
        server.server_close()
