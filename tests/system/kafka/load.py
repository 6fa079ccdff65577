"""Numbered spans, and the clients that send them."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

SPANS, TRACES = 200, 4
"""The spans of a request, and the traces that they belong to."""
_EACH = SPANS // TRACES
_BEGIN_NS = 1_790_000_000 * 10**9


def request(number: int) -> bytes:
    """Request `number` as OTLP: the spans from `number * SPANS` on, in as many traces as TRACES."""
    message = TracesData()
    group = message.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "train"
    scope = group.scope_spans.add()
    for span in range(number * SPANS, (number + 1) * SPANS):
        trace = span // _EACH
        added = scope.spans.add(
            trace_id=b"cirron.." + (trace + 1).to_bytes(8, "big"),
            span_id=(span + 1).to_bytes(8, "big"),
            name="step",
            start_time_unix_nano=_BEGIN_NS + span * 1000,
            end_time_unix_nano=_BEGIN_NS + span * 1000 + 900,
        )
        added.attributes.add(key="n").value.int_value = span
    return message.SerializeToString()


def span_of(row_id: str) -> int:
    """The number of a span, from the id of its row: the span id and half of the trace id."""
    span, trace = int(row_id[:16], 16) - 1, int(row_id[16:], 16) - 1
    assert trace == span // _EACH, f"span {span} is in the trace of others"
    return span


class Load:
    """Clients that send requests to agents, each until it is acknowledged."""

    def __init__(self, requests: int, urls: Sequence[Callable[[], str]], clients: int = 2) -> None:
        """Prepare so many clients for each agent, whose URL may change."""
        self.requests = requests
        self.acknowledged = bytearray(requests)
        """1 for each request that an agent has acknowledged."""
        self._allowed, self._next = 0, 0
        self._is_over = False
        self._changed = threading.Condition()
        self._problems: list[str] = []
        self._clients = [
            threading.Thread(target=self._send_all, args=(url,), daemon=True)
            for url in urls
            for _ in range(clients)
        ]
        for client in self._clients:
            client.start()

    def allow(self, share: float) -> None:
        """Let the clients send this share of all requests, those sent before included."""
        with self._changed:
            self._allowed = round(self.requests * share)
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until every allowed request is acknowledged."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._problems or sum(self.acknowledged) >= self._allowed, seconds
            )
            assert done, f"{sum(self.acknowledged)} of {self._allowed} requests are acknowledged"
        assert self._problems == []

    def stop(self) -> None:
        """End the clients."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for client in self._clients:
            client.join(90)

    def _send_all(self, url: Callable[[], str]) -> None:
        while (number := self._take()) is not None:
            body = request(number)
            while not self._is_over and not self._send(url(), body):
                time.sleep(0.1)
            with self._changed:
                self.acknowledged[number] = not self._is_over
                self._changed.notify_all()

    def _take(self) -> int | None:
        """The number of the next request, once it is allowed; None if there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._next < self._allowed)
            if self._is_over or self._next >= self.requests:
                return None
            self._next += 1
            return self._next - 1

    def _send(self, url: str, body: bytes) -> bool:
        asked = urllib.request.Request(
            f"{url}/v1/traces", body, {"Content-Type": "application/x-protobuf"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            if error.code not in {429, 502, 503, 504}:
                with self._changed:
                    self._problems.append(f"{error.code}: {error.read()[:200]!r}")
                    self._changed.notify_all()
        except OSError:
            pass  # the agent was killed, with or without the request
        return False
