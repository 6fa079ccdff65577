"""Follow a spool within a test, and read what a real receiver got."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.delivery.delivery_stats import ExportStats
from cirron_otel.core.delivery.follow import Follower
from cirron_otel.core.delivery.follow_work import FollowOptions
from cirron_otel.core.delivery.retry_policy import Backoff
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.translator.own.encode import Options
from cirron_otel.tools.convert.report import ExportReport
from tests.kit.servers.servers import PROTOBUF, Answer, HttpReceiver

from .made import encoded, made, span

FAST = Backoff(first=0.01, longest=0.01)
OK = Answer(headers=PROTOBUF)


def config_of(server: HttpReceiver) -> OtlpConfig:
    return OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url, timeout=20)


class Clock:
    """A clock that returns the time that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Following:
    """A follower in this process."""

    def __init__(self, root: Path, config: OtlpConfig, **terms: Any) -> None:
        self.stats = ExportStats(config.shown_endpoint)
        self.said: list[str] = []
        self.stop = threading.Event()
        self.follower = Follower(
            str(root),
            config,
            Options(),
            self.stats,
            stop=self.stop,
            say=self.said.append,
            terms=FollowOptions(**{"patience": 0, "backoff": FAST, **terms}),
        )

    @property
    def report(self) -> ExportReport:
        report = ExportReport()
        report.add(self.stats)
        return report

    def once(self) -> ExportReport:
        self.follower.once()
        return self.report

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.follower.run)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join()


def arrived(server: HttpReceiver) -> list[tuple[bytes, bytes]]:
    """Return (span id, trace id) of every span that arrived, in order."""
    return [
        (each.span_id, each.trace_id)
        for post in server.posts
        for resource in TracesData.FromString(post.body).resource_spans
        for scope in resource.scope_spans
        for each in scope.spans
    ]


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def put(root: Path, *numbers: int, **changes: Any) -> list[str]:
    """Write one batch for each number, each with a session of one span; return their names."""
    writer = SpoolWriter(root)
    one = {"name": "cirron.session"}
    return [writer.write(encoded(made(n, spans=[span(n, **one)], **changes))).name for n in numbers]
