"""Real OTLP receivers on loopback, whose answers a test writes down beforehand."""

from __future__ import annotations

import gzip
import ssl
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def traces(spans: int, name: str = "step", unknown: bytes = b"\xa0\x06\x01") -> bytes:
    """A request whose bytes no encoder of today would give: it has an unknown field."""
    data = TracesData()
    rs = data.resource_spans.add()
    rs.resource.attributes.add(key="service.name").value.string_value = "s"
    rs.MergeFromString(unknown)
    scope = rs.scope_spans.add()
    for number in range(spans):
        scope.spans.add(name=name, span_id=number.to_bytes(8, "big"), flags=0x301)
    return data.SerializeToString()


def span_ids(requests: list[bytes]) -> list[int]:
    return [
        int.from_bytes(span.span_id, "big")
        for request in requests
        for rs in TracesData.FromString(request).resource_spans
        for scope in rs.scope_spans
        for span in scope.spans
    ]


@dataclass
class Post:
    """One request as the HTTP server saw it."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> bytes:
        encoding = self.headers.get("content-encoding", "identity")
        decode: dict[str, Callable[[bytes], bytes]] = {
            "gzip": gzip.decompress,
            "deflate": zlib.decompress,
            "identity": bytes,
        }
        return decode[encoding](self.raw)


@dataclass
class Answer:
    """What an HTTP server says; `hold` is waited for before it says so."""

    status: int = 200
    """0 closes the connection without an answer."""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None


PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


@dataclass
class HttpReceiver:
    port: int
    posts: list[Post]
    answers: list[Answer | Callable[[Post], Answer]]
    """Taken one by one; behind the last, everything is accepted."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/traces"


@contextmanager
def http_receiver(
    *answers: Answer | Callable[[Post], Answer], tls: ssl.SSLContext | None = None
) -> Iterator[HttpReceiver]:
    script = list(answers)
    posts: list[Post] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            post = Post(self.path, {k.lower(): v for k, v in self.headers.items()}, raw)
            posts.append(post)
            answer = script.pop(0) if script else Answer(headers=PROTOBUF)
            if callable(answer):
                answer = answer(post)
            if answer.hold is not None:
                answer.hold.wait(60)
            if answer.status == 0:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in answer.headers:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that hangs up, or fails to shake hands, is what a test asked for

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield HttpReceiver(server.server_address[1], posts, script)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Call:
    """One request as the gRPC server saw it."""

    body: bytes
    metadata: dict[str, str | bytes]


GrpcAnswer = Callable[[bytes, grpc.ServicerContext], bytes]


@dataclass
class GrpcReceiver:
    port: int
    calls: list[Call]


@contextmanager
def grpc_receiver(
    *answers: GrpcAnswer,
    port: int = 0,
    credentials: grpc.ServerCredentials | None = None,
    max_bytes: int | None = None,
) -> Iterator[GrpcReceiver]:
    script = list(answers)
    calls: list[Call] = []

    def export(request: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = {item.key: item.value for item in context.invocation_metadata() or ()}  # type: ignore[attr-defined]
        calls.append(Call(request, metadata))
        return script.pop(0)(request, context) if script else b""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
        def service(self, details: grpc.HandlerCallDetails) -> Any:
            if details.method != EXPORT:
                return None
            return grpc.unary_unary_rpc_method_handler(export)

    options: list[tuple[str, Any]] = [("grpc.so_reuseport", 0)]
    if max_bytes is not None:
        options.append(("grpc.max_receive_message_length", max_bytes))
    server = grpc.server(ThreadPoolExecutor(4), [Handler()], options=options)
    address = f"127.0.0.1:{port}"
    if credentials is None:
        bound = server.add_insecure_port(address)
    else:
        bound = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield GrpcReceiver(bound, calls)
    finally:
        server.stop(None).wait()


def fails(code: grpc.StatusCode, details: str, **metadata: bytes) -> GrpcAnswer:
    """An answer that ends the call with `code`; `metadata` names are given with _ for - and ."""

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        if metadata:
            names = {
                "grpc_status_details_bin": "grpc-status-details-bin",
                "google_rpc_retryinfo_bin": "google.rpc.retryinfo-bin",
            }
            context.set_trailing_metadata(tuple((names[k], v) for k, v in metadata.items()))
        context.abort(code, details)
        raise AssertionError("abort raises")

    return answer


class RecordedStop(threading.Event):
    """A stop event that notes how long it was waited for, and does not wait."""

    def __init__(self, set_after: int = 0, then: Sequence[Callable[[], object]] = ()) -> None:
        """Be set by wait number `set_after`, if any; call one of `then` at each wait."""
        super().__init__()
        self.waits: list[float] = []
        self.then = list(then)
        self._set_after = set_after

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        if self.then:
            self.then.pop(0)()
        if len(self.waits) == self._set_after:
            self.set()
        return self.is_set()


@dataclass
class Certificates:
    """A CA, and what it signed for 127.0.0.1 and for a client."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


def make_certificates(folder: Path) -> Certificates:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    # Python 3.13 demands the key usage.
    usage = ("-addext", "keyUsage=critical,keyCertSign")
    openssl(
        *new, "-x509", *usage, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=a test's CA"
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("server", "client"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return Certificates(folder)
