"""Standard error of a running collector: one JSON object a line, whatever its libraries write."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc

from tests.kit.servers.away import until
from tests.kit.servers.http2_frames import (
    PREFACE,
    data_frame,
    frame,
    headers_frames,
    indexed,
    literal,
)
from tests.kit.servers.serving import Serving, serving

from .test_figures import samples
from .test_running import post, request

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
ODD = [
    literal("grpc-encoding", "lz9"),
    literal("grpc-timeout", "soon"),
    literal("content-type", "text/html"),
    literal("x-bin", "$$$"),
    literal("te", "nothing"),
]


@contextlib.contextmanager
def no_grpc() -> Iterator[str]:
    """An endpoint that answers gRPC's clients with HTTP/1.1."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def send(here: Serving, sent: bytes) -> None:
    host, _, port = here.grpc.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(sent)
        connection.settimeout(0.3)
        with contextlib.suppress(OSError):
            while connection.recv(65536):
                pass


def test_every_line_is_json(tmp_path: Path) -> None:
    config = tmp_path / "collector.yaml"
    settings = frame(0x4, 0, 0, b"")
    begin = [indexed(3), indexed(6), literal(":path", TRACES), literal(":authority", "a")]
    with no_grpc() as endpoint:
        config.write_text(
            f"exporters:\n  - {{type: otlp, endpoint: '{endpoint}'}}\n"
            "receivers: {grpc: {tls: null}}\nlogs: {level: debug}\ndrain_s: 1\n"
        )
        with serving(tmp_path / "data", "--config", str(config)) as here:
            assert post(f"{here.http}/v1/traces", request(), "application/x-protobuf")[0] == 200
            for header in ODD:
                block = b"".join([*begin, header])
                content = data_frame(1, b"\1\0\0\0\1x", is_last=True)
                send(here, PREFACE + settings + headers_frames(1, block) + content)
            for garbage in (b"\x16\x03\x01" * 9, PREFACE + b"\xff" * 99, PREFACE + bytes(20_000)):
                send(here, garbage)
            with grpc.insecure_channel(here.grpc) as channel, contextlib.suppress(grpc.RpcError):
                channel.unary_unary(TRACES)(b"\xff", timeout=30)
            failures = ("export_failures_total", f"otlp {endpoint}", "unreachable")
            until(lambda: samples(here).get(failures))
            second = here.translator()
            if second is not None:
                os.kill(second, signal.SIGKILL)
                until(lambda: here.translator() not in (None, second))
            here.end()
    lines = here.log.read_text().splitlines()
    assert lines
    for line in lines:
        assert json.loads(line).keys() >= {"time", "level", "logger", "message"}, line
