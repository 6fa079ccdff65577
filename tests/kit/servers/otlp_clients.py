"""Plain clients of a running collector, and what it has stored in the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import Encoding, Format
from cirron_otel.semconv import FOREIGN_BATCH
from cirron_otel.tools.convert.convert import ConvertRequest, convert

from .serving import Serving, serving

PROTOBUF, JSON = "application/x-protobuf", "application/json"
SERVICE = "/opentelemetry.proto.collector.{0}.v1.{1}Service/Export"
TRACES = SERVICE.format("trace", "Trace")
METRICS = SERVICE.format("metrics", "Metrics")
_WAIT_S = 180.0
_UNBOUNDED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def spans(count: int = 1, name: str = "step") -> bytes:
    """A request of spans that nobody has sent before."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for _ in range(count):
        scope.spans.add(name=name, trace_id=os.urandom(16), span_id=os.urandom(8))
    return request.SerializeToString()


# --- HTTP -------------------------------------------------------------------------------------


@dataclass
class Said:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        return self.headers["content-type"]

    @property
    def error(self) -> Status:
        """Its Status, read as its Content-Type has it."""
        if self.kind == PROTOBUF:
            return Status.FromString(self.body)
        told = json.loads(self.body)
        status = Status(code=told["code"], message=told["message"])
        for each in told.get("details", ()):
            assert each.pop("@type") == "type.googleapis.com/google.rpc.BadRequest"
            violations = [
                BadRequest.FieldViolation(**violation) for violation in each["fieldViolations"]
            ]
            status.details.add().Pack(BadRequest(field_violations=violations))
        return status


def connection(here: Serving) -> contextlib.closing[http.client.HTTPConnection]:
    address = here.http.removeprefix("http://")
    return contextlib.closing(http.client.HTTPConnection(address, timeout=_WAIT_S))


def ask(
    client: http.client.HTTPConnection, method: str, path: str, body: Any, **headers: str
) -> Said:
    """One request; `headers` are named with _ for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    client.request(method, path, body, named)
    answer = client.getresponse()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return Said(answer.status, found, answer.read())


def post(
    here: Serving, body: Any, kind: str = PROTOBUF, path: str = "/v1/traces", **headers: str
) -> Said:
    """A POST over a connection of its own."""
    with connection(here) as client:
        return ask(client, "POST", path, body, Content_Type=kind, **headers)


@contextlib.contextmanager
def unfinished(here: Serving, size: int, sent: bytes) -> Iterator[socket.socket]:
    """A POST that has said how much it will send, and has sent less."""
    host, _, port = here.http.removeprefix("http://").rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _WAIT_S) as sender:
        head = f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\n"
        sender.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode() + sent)
        yield sender


@contextlib.contextmanager
def full(here: Serving, size: int) -> Iterator[None]:
    """A request that is under way takes the room of `size` bytes."""
    with unfinished(here, size + 1, bytes(size)):
        _until_in_flight(here, size)
        yield
    _until_in_flight(here, 0)


def _until_in_flight(here: Serving, size: int) -> None:
    """Wait; the test's own time limit ends what never comes."""
    gauge = 'cirron_collector_queue_bytes{queue="in flight"} '
    while True:
        with connection(here) as client:
            lines = ask(client, "GET", "/metrics", None).body.decode().splitlines()
        found = [float(line.removeprefix(gauge)) for line in lines if line.startswith(gauge)]
        if found == [size]:
            return
        time.sleep(0.02)


# --- gRPC -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    code: str
    message: str = ""
    body: bytes = b""
    retry_after_s: float | None = None


@contextlib.contextmanager
def channel(here: Serving, **options: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(here.grpc, options=_UNBOUNDED, **options) as found:
        yield found


def call(here: Serving, body: bytes, method: str = TRACES, **options: Any) -> Ended:
    """A unary call over a channel of its own."""
    with channel(here) as own:
        return ended(own.unary_unary(method).future(body, timeout=_WAIT_S, **options))


def ended(future: Any) -> Ended:
    try:
        return Ended("OK", body=bytes(future.result()))
    except grpc.RpcError as error:
        return Ended(error.code().name, error.details() or "", b"", _retry_after_s(error))  # type: ignore[attr-defined]


def _retry_after_s(error: Any) -> float | None:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    return float(info.retry_delay.ToTimedelta().total_seconds())
    return None


# --- what is stored ---------------------------------------------------------------------------


@contextlib.contextmanager
def storing(folder: Path) -> Iterator[tuple[Serving, list[ResourceSpans]]]:
    """A collector of one's own; the list holds what it has stored once it has ended."""
    found: list[ResourceSpans] = []
    with serving(folder) as here:
        yield here, found
        assert here.end() == 0
    found += stored(folder)


def stored(folder: Path) -> list[ResourceSpans]:
    """Every ResourceSpans of a spool, converted back to OTLP; without the batches' own headers."""
    target = folder.parent / f"{folder.name}.binpb"
    convert(ConvertRequest(str(folder), str(target), target_format="otlp-proto"))
    with target.open("rb") as stream:
        return [
            each
            for message in read_messages(stream, Format(Encoding.PROTO))
            for each in TracesData.FromString(message.data).resource_spans
            if not any(attribute.key == FOREIGN_BATCH for attribute in each.resource.attributes)
        ]
