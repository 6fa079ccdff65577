"""The Cirron platform's side of docs/cirron-http.md on loopback, with faults as a test writes them.

It runs in the test's process, in a real HTTP server: what clients in other processes send arrives
here as well.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Fault:
    """What is done to a request instead of what it asks for."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    raw: bytes | None = None
    """Sent as it is, and no HTTP."""
    is_lost: bool = False
    """The request is done, and the connection closed instead of an answer."""
    hold: threading.Event | None = None
    """Waited for before anything is said."""
    keep_bytes: int | None = None
    """Of an upload, what is stored before the connection breaks."""


@dataclass
class Received:
    """A request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def batch(self) -> dict[str, Any]:
        batch: dict[str, Any] = json.loads(gzip.decompress(self.body))
        return batch


class CirronServer:
    """Takes batches and snapshot files; `faults` are taken one by one, before anything works."""

    def __init__(self, *, takes_parts: bool = True, has_blobs: bool = True) -> None:
        self.takes_parts, self.has_blobs = takes_parts, has_blobs
        self.faults: list[Fault | Callable[[Received], Fault | None]] = []
        self.blob_faults: list[Fault] = []
        self.requests: list[Received] = []
        self.accepted: list[str] = []
        """The ids of the batches that were taken, each as often as it came."""
        self.batches: dict[str, dict[str, Any]] = {}
        self.senders: dict[str, str] = {}
        """The SDK version that came with a batch, by its id."""
        self.blobs: dict[str, bytearray] = {}
        self.totals: dict[str, int] = {}
        """Of the files that come in parts, how long they are to be."""
        self.lock = threading.Lock()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def posts(self) -> list[Received]:
        return [each for each in self.requests if each.method == "POST"]

    def puts(self) -> list[Received]:
        return [each for each in self.requests if each.method == "PUT"]

    def is_whole(self, name: str) -> bool:
        return name in self.blobs and len(self.blobs[name]) == self.totals.get(name)

    @contextmanager
    def running(self, port: int = 0) -> Iterator[CirronServer]:
        platform = self

        class Handler(_Handler):
            server_state = platform

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that hangs up is what a test asked for

        server = Server(("127.0.0.1", port), Handler)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_state: CirronServer

    def _receive(self) -> Received:
        body = bytearray()
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0:
            piece = self.rfile.read1(min(left, 65536))
            if not piece:
                break
            body += piece
            left -= len(piece)
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Received(self.command, self.path, headers, bytes(body))

    def _answer(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fails(self, received: Received, faults: list[Any]) -> Fault | None:
        state = self.server_state
        with state.lock:
            fault = faults.pop(0) if faults else None
        if callable(fault):
            fault = fault(received)
        if fault is None:
            return None
        if fault.hold is not None:
            fault.hold.wait(60)
        if fault.raw is not None:
            self.wfile.write(fault.raw)
        elif fault.status:
            self._answer(fault.status, fault.headers, fault.body)
        elif not fault.is_lost and fault.keep_bytes is None:
            return None  # it was held, and goes on
        self.close_connection = fault.status in (0, 413)
        return fault

    def do_POST(self) -> None:
        state, received = self.server_state, self._receive()
        with state.lock:
            state.requests.append(received)
        fault = self._fails(received, state.faults)
        if fault is not None and not fault.is_lost:
            return
        batch = received.batch
        with state.lock:
            state.accepted.append(batch["batch_id"])
            state.batches[batch["batch_id"]] = batch
            state.senders[batch["batch_id"]] = received.headers["x-cirron-sdk-version"]
        if fault is None:
            self._answer(202, body=json.dumps({"batch_id": batch["batch_id"]}).encode())

    def do_HEAD(self) -> None:
        state, received = self.server_state, self._receive()
        state.requests.append(received)
        if self._fails(received, state.blob_faults):
            return
        blob = state.blobs.get(_key(self.path))
        if not state.has_blobs or (blob is None and not state.takes_parts):
            self._answer(404)
        elif state.takes_parts:
            self._answer(200 if blob else 404, {"Upload-Offset": str(len(blob or b""))})
        else:
            assert blob is not None
            self._answer(200, {"Content-Length": str(len(blob))})

    def do_PUT(self) -> None:
        state, received = self.server_state, self._receive()
        state.requests.append(received)
        if not state.has_blobs:
            return self._answer(404)
        fault = self._fails(received, state.blob_faults)
        if fault is not None and fault.keep_bytes is None:
            return None
        kept = received.body if fault is None else received.body[: fault.keep_bytes]
        name, part = _key(self.path), received.headers.get("content-range")
        if part is None:
            state.blobs[name] = bytearray(kept)
            state.totals[name] = len(received.body)
            return self._answer(201) if fault is None else None
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", part)
        assert match is not None
        assert state.takes_parts
        start, end, total = map(int, match.groups())
        blob = state.blobs.setdefault(name, bytearray())
        state.totals[name] = total
        if start != len(blob) or end - start + 1 != len(received.body):
            return self._answer(409, {"Upload-Offset": str(len(blob))})
        blob += kept
        if fault is not None:
            return None
        status = 201 if len(blob) == total else 308
        return self._answer(status, {"Upload-Offset": str(len(blob))})

    def log_message(self, *args: object) -> None:
        pass


def _key(path: str) -> str:
    return unquote(path.partition("/blobs/")[2])
