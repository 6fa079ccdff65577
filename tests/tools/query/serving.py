"""Servers on loopback that answer the requests of a query API as a test specifies."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Said:
    """One answer; `promised` is its content length if that is not the length of the body."""

    status: int = 200
    body: bytes = b"{}"
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    promised: int | None = None


@dataclass
class Served:
    """A running server, and the requests that it received."""

    url: str
    asked: list[tuple[str, dict[str, str]]]
    """(path with query, headers by names in lower case)."""


@contextlib.contextmanager
def serving(answer: Callable[[str, int], Said]) -> Iterator[Served]:
    """Send the results of `answer(path, number of the request)`; numbers begin with 0."""
    asked: list[tuple[str, dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a small answer waits 40 ms

        def do_GET(self) -> None:
            asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            said = answer(self.path, len(asked) - 1)
            self.send_response(said.status)
            self.send_header("content-type", said.kind)
            for name, value in said.headers.items():
                self.send_header(name, value)
            length = len(said.body) if said.promised is None else said.promised
            self.send_header("content-length", str(length))
            self.end_headers()
            self.wfile.write(said.body)
            self.close_connection = length != len(said.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Served(f"http://127.0.0.1:{server.server_port}", asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
