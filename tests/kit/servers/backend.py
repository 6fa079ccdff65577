"""A backend on loopback that takes OTLP/HTTP and Cirron's own requests, in whatever mood it is."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.kit.backends.process import free_port

KEY = "cirron_secret_0123456789"
TAKE, LOSE, HOLD, GARBAGE, SLOW = "take", "lose", "hold", "garbage", "slow"
"""Answers besides status codes: accept; accept and hang up, at one request with spans; accept and
say nothing until `mood` changes; accept with bytes that are no HTTP; accept a little later."""

PROTOBUF = "application/x-protobuf"


class Backend:
    """`mood` is what it does to each request: one of the words above, or a status code."""

    def __init__(self, port: int = 0) -> None:
        self.mood: str | int = TAKE
        self.port = port
        self.requests = 0
        self.taken: list[list[str]] = []
        """The ids of the spans of each request that was taken, in Cirron's shape."""
        self.metrics: list[bytes] = []
        """The requests with metrics that were taken; `requests` does not count them."""
        self.changed = threading.Condition()

    @property
    def span_ids(self) -> list[str]:
        """Each as often as it was taken."""
        return [span_id for request in list(self.taken) for span_id in request]

    def otlp(self) -> dict[str, str]:
        """The environment in which OTLP goes here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }

    def cirron(self) -> dict[str, str]:
        """The environment in which Cirron's batches go here."""
        return {"CIRRON_API_KEY": KEY, "CIRRON_API_ENDPOINT": f"http://127.0.0.1:{self.port}"}

    def set(self, mood: str | int) -> None:
        with self.changed:
            self.mood = mood
            self.changed.notify_all()

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        backend = cls()
        with backend.again():
            yield backend

    @classmethod
    def down(cls) -> Self:
        """One that is not there: nobody listens at its port until it is `again`."""
        return cls(free_port())

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """It is up, at its port."""
        backend = self

        class Handler(_Handler):
            served = backend

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that hangs up, or is killed, is what a test asked for

        server = Server(("127.0.0.1", self.port), Handler)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.set(TAKE)
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: Backend

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        is_otlp = self.headers["Content-Type"] == PROTOBUF
        backend = self.served
        with backend.changed:
            mood = backend.mood
            is_taken = not isinstance(mood, int)
            if self.path == "/v1/metrics":
                backend.metrics += [body] if is_taken else []
            else:
                backend.requests += 1
                ids = (otlp_ids if is_otlp else _cirron_ids)(body)
                backend.taken += [ids] if is_taken else []
                if mood == LOSE and ids:
                    backend.mood = TAKE  # not by the test: the sender may be quicker
                elif mood == LOSE:
                    mood = TAKE
            if mood == HOLD:
                backend.changed.wait_for(lambda: backend.mood != HOLD, 60)
            elif mood == SLOW:
                backend.changed.wait(0.3)
        if mood in (LOSE, HOLD):
            self.close_connection = True
        elif mood == GARBAGE:
            self.wfile.write(b"\x16\x03 what?\r\n\r\n")
            self.close_connection = True
        elif isinstance(mood, int):
            retry = {"Retry-After": "1"} if mood in (429, 503) else {}
            self._say(mood, {"Content-Type": "text/plain", **retry}, b"no")
        elif is_otlp:
            self._say(200, {"Content-Type": PROTOBUF}, b"")
        else:
            batch_id = json.loads(body)["batch_id"]
            self._say(202, {}, json.dumps({"batch_id": batch_id}).encode())

    def _say(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def otlp_ids(body: bytes) -> list[str]:
    """The ids of a request's spans in Cirron's shape, without the synthetic ones."""
    return [
        f"{span.span_id.hex()}{span.trace_id.hex()[16:]}"
        for part in TracesData.FromString(body).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
        if not any(attribute.key == "cirron.synthetic" for attribute in span.attributes)
    ]


def _cirron_ids(body: bytes) -> list[str]:
    return [span["id"] for span in json.loads(body)["spans"]]


Environment = Callable[[Backend], dict[str, str]]
WAYS: dict[str, Environment] = {"otlp": Backend.otlp, "cirron": Backend.cirron}
