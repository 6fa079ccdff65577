"""One interface to three real backends: send messages, and fetch traces with the command."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from cirron_otel.core.translator.codec import pushable
from tests.kit.backends.run import Jaeger
from tests.kit.backends.tempo import Tempo
from tests.kit.servers.command_server import shared_server
from tests.kit.spools.comparing import COMMAND, cirron_otel, spans_of

STORAGES = ("jaeger", "jaeger on disk", "tempo")


@dataclass(frozen=True)
class Store:
    """A running backend."""

    name: str
    backend: Jaeger | Tempo

    def send(self, messages: Iterable[TracesData]) -> None:
        """Send messages over OTLP, each in one request."""
        for message in messages:
            request = urllib.request.Request(
                f"{self.backend.otlp_http}/v1/traces",
                message.SerializeToString(),
                {"content-type": "application/x-protobuf"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200

    def export_to(self, spool: Path, file: Path) -> list[Span]:
        """Convert a spool to OTLP in `file`, push it, and return its spans once they are there."""
        cirron_otel("convert", spool, file)
        cirron_otel(
            "export",
            file,
            OTEL_EXPORTER_OTLP_ENDPOINT=self.backend.otlp_http,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
        spans = spans_of(file)
        self.wait(spans)
        return spans

    def wait(self, spans: Iterable[Span]) -> None:
        """Wait until the backend returns all of the spans; Tempo's are in a block then."""
        wanted: dict[str, set[str]] = {}
        for span in spans:
            wanted.setdefault(span.trace_id.hex(), set()).add(span.span_id.hex())
        for trace_id, ids in wanted.items():
            self.backend.wait_for_trace(trace_id, ids)
        if isinstance(self.backend, Tempo):
            self.backend.flush()

    def address(self, what: str) -> str:
        """Return the query address, which is the SRC of `convert`."""
        return f"{self.name.partition(' ')[0]}:{self.backend.query}?{what}"

    def back(self, what: str, target: Path) -> tuple[int, dict[str, Any], str]:
        """Convert to a spool at `target`; return the exit code, the report and stderr."""
        command = [str(COMMAND), "convert", self.address(what), f"{target}/", "--json"]
        done = shared_server().run(command, Path.cwd(), os.environ)
        errors = done.stderr.decode()
        assert "Traceback" not in errors
        return done.returncode, json.loads(done.stdout or "{}"), errors

    def eventually(self, what: str, target: Path, traces: int) -> dict[str, Any]:
        """Return the report once a search finds `traces` traces: the search index is delayed.

        After three minutes, the last report is returned.
        """
        deadline = time.monotonic() + 180
        number = 0
        while True:
            number += 1
            _, report, _ = self.back(what, target / str(number))
            found = report["backend"]["traces"] if report else 0
            if found >= traces or time.monotonic() > deadline:
                return report
            time.sleep(0.2)


def spans_in(messages: Iterable[TracesData]) -> Iterator[Span]:
    """Yield every span of the messages."""
    for message in messages:
        for group in message.resource_spans:
            for scoped in group.scope_spans:
                yield from scoped.spans


def without(messages: Iterable[TracesData], trace_id: bytes, span_id: bytes = b"") -> TracesData:
    """Return all messages as one, without a trace or one of its spans."""
    left = TracesData()
    for message in messages:
        left.MergeFrom(TracesData.FromString(pushable(message.SerializeToString()).data))
    for group in left.resource_spans:
        for scoped in group.scope_spans:
            for index in reversed(range(len(scoped.spans))):
                span = scoped.spans[index]
                if span.trace_id == trace_id and span_id in (b"", span.span_id):
                    del scoped.spans[index]
    return left
