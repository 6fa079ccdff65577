"""An HttpReceiver on loopback, in a thread of the test's process, and ways to speak to it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from cirron_otel.collector.receiver.http.server import HttpReceiver
from cirron_otel.collector.service.event_loop import new_event_loop

from .fake_intake import FakeIntake

T = TypeVar("T")

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
BATCH = {
    "schema_version": 1,
    "sdk_version": "0.3.0",
    "batch_id": "e17f56e63b42888881ce40b8722858aa",
    "created_ns": 1795197734885980273,
    "spans": [],
    "marks": [],
    "snapshots": [],
}
WAIT_S = 180.0
"""Far more than anything here takes."""


def traces(spans: int = 1) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for number in range(1, spans + 1):
        scope.spans.add(name="step", span_id=number.to_bytes(8, "big"), trace_id=b"t" * 16)
    return request.SerializeToString()


@dataclass
class Said:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> str:
        """What an error says, read as its Content-Type has it."""
        if self.headers["content-type"] == PROTOBUF:
            return str(Status.FromString(self.body).message)
        assert self.headers["content-type"] == JSON
        return str(json.loads(self.body)["message"])


class Blobs:
    """A BlobStore in memory; `fault` is raised when a file is about to be kept."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes] = {}
        self.sizes: list[int | None] = []
        self.fault: Exception | None = None

    async def put(
        self, span_id: str, file: str, stream: AsyncIterator[bytes], size: int | None
    ) -> None:
        self.sizes.append(size)
        content = b"".join([piece async for piece in stream])
        if self.fault is not None:
            raise self.fault
        self.files[span_id, file] = content

    async def head(self, span_id: str, file: str) -> int | None:
        content = self.files.get((span_id, file))
        return None if content is None else len(content)


class Served:
    """A receiver that runs."""

    def __init__(self, intake: FakeIntake, receiver: HttpReceiver, loop: Any) -> None:
        self.intake, self.receiver, self._loop = intake, receiver, loop
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` where the server runs."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def begin(self, work: Coroutine[Any, Any, T]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def hold(self) -> Callable[[], None]:
        """Let requests wait in the intake; the answer lets them go."""
        event = asyncio.Event()
        self.intake.hold = event

        def release() -> None:
            self.intake.hold = None
            self._loop.call_soon_threadsafe(event.set)

        return release

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Said:
        """One request over a connection of its own."""
        with contextlib.closing(self.client(tls)) as client:
            client.request(method, path, body, dict(headers or {}))
            return said(client)

    def client(self, tls: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        if tls is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=WAIT_S, context=tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def post(self, body: Any, path: str = "/v1/traces", kind: str = PROTOBUF, **more: str) -> Said:
        """POST; `more` are headers, with _ for -."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        return self.ask("POST", path, body, {"Content-Type": kind, **headers})

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_S)

    def raw(self, *pieces: bytes, is_ended: bool = False) -> bytes:
        """Send bytes as they are, and read until the server closes the connection."""
        with self.socket() as connection:
            for piece in pieces:
                connection.sendall(piece)
            if is_ended:
                connection.shutdown(socket.SHUT_WR)
            return read_all(connection)


def said(client: http.client.HTTPConnection) -> Said:
    answer = client.getresponse()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return Said(answer.status, headers, answer.read())


def read_all(connection: socket.socket) -> bytes:
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            found += piece
    return bytes(found)


def statuses(answers: bytes) -> list[int]:
    """The statuses of all answers in what came over a connection."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answers)]


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@contextmanager
def serving(intake: FakeIntake | None = None, **options: Any) -> Iterator[Served]:
    """Run a receiver with these options."""
    intake = intake or FakeIntake()
    loop = new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    receiver = HttpReceiver(intake, **{"host": "127.0.0.1", "port": 0, **options})
    served = Served(intake, receiver, loop)
    try:
        host, served.port = served.do(receiver.start())
        assert host == "127.0.0.1"
        yield served
        until(lambda: not intake.in_flight)  # whatever a test does, nothing stays reserved
    finally:
        served.do(receiver.stop(1.0))
        served.do(_rest())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _rest() -> None:
    """End what is left, as asyncio.run does."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
