"""A web server behind stock instrumentation: `server.py MODE DIRECTORY`; its port on stdout.

Every call is a request of Cirron's. It ends when its input does, and then reports.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from opentelemetry import trace
from opentelemetry.instrumentation.wsgi import OpenTelemetryMiddleware

import cirron_otel as ci
from tests.system.backends.services import telemetry


class Server(ThreadingMixIn, WSGIServer):
    """A thread a request."""


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def application(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    with ci.inference() as request:
        ci.mark("tokens", 3)
        with trace.get_tracer("model").start_as_current_span("generate"), ci.scope("decode"):
            pass
        trace_id = request.get_span_context().trace_id
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{trace_id:032x}".encode()]


def main() -> None:
    mode, directory = sys.argv[1:]
    finish = telemetry.start(mode, directory)
    app: Any = OpenTelemetryMiddleware(application)
    server = make_server("127.0.0.1", 0, app, Server, Quiet)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()
    server.server_close()
    print(json.dumps(finish()), flush=True)


main()
