"""A client that sends OTLP requests as fast as they are acknowledged, or at a given rate.

`load_client.py ENDPOINT SECONDS RATE STREAMS SEED`: requests of 500 spans over gRPC, RATE of them
a second (0: as many as there is room for), at most STREAMS at once. Prints one JSON object: how
many were acknowledged and how many refused, and how long acknowledgements took, in seconds. With a
rate the time runs from when a request was due, so that a server that stalls cannot hide it.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import threading
import time

import grpc
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

SPANS = 500
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_BODIES = 40
_START_NS = 1_795_000_000_000_000_000


def request(choice: random.Random, spans: int = SPANS) -> tuple[bytes, bytes]:
    """A request as a service's SDK sends it, and the trace id that all its spans have."""
    message = ResourceSpans()
    for key, value in (("service.name", "shop"), ("host.name", "a"), ("process.pid", 17)):
        _put(message.resource.attributes.add(key=key), value)
    scope = message.scope_spans.add()
    scope.scope.name, scope.scope.version = "http", "1.0"
    trace_id = choice.randbytes(16)
    for number in range(spans):
        start = _START_NS + number
        span = scope.spans.add(
            trace_id=trace_id,
            span_id=choice.randbytes(8),
            parent_span_id=choice.randbytes(8),
            name="GET /item",
            kind=2,
            start_time_unix_nano=start,
            end_time_unix_nano=start + 1000,
            flags=257,
        )
        for key, value in (
            ("http.request.method", "GET"),
            ("http.response.status_code", 200),
            ("url.full", f"http://example.org/items/{choice.randrange(10**6)}"),
            ("server.address", "10.0.0.1"),
            ("http.response.body.size", choice.randrange(10**6)),
        ):
            _put(span.attributes.add(key=key), value)
        span.status.code = 1
    return TracesData(resource_spans=[message]).SerializeToString(), trace_id


def _put(attribute: object, value: str | int) -> None:
    field = "string_value" if isinstance(value, str) else "int_value"
    setattr(attribute.value, field, value)  # type: ignore[attr-defined]


class Load:
    """What all streams share."""

    def __init__(self, seconds: float, rate: float, seed: int) -> None:
        choice = random.Random(seed)
        self._bodies = [request(choice) for _ in range(_BODIES)]
        self._begins = time.perf_counter() + 0.2
        self._ends = self._begins + seconds
        self._rate = rate
        self._lock = threading.Lock()
        self._sent = 0
        self.acknowledged = self.refused = 0
        self.took: list[float] = []

    def stream(self, endpoint: str) -> None:
        """Send one request after the other until the time is over."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(endpoint, options) as channel:
            grpc.channel_ready_future(channel).result(30)
            export = channel.unary_unary(_METHOD)
            while (due := self._next()) is not None:
                body = self._fresh()
                since = due if self._rate else time.perf_counter()
                try:
                    export(body, timeout=30)
                except grpc.RpcError:
                    self.refused += 1
                    time.sleep(0.02)
                    continue
                self.took.append(time.perf_counter() - since)

    def _next(self) -> float | None:
        """When the next request is due; returns then. None when the time is over."""
        with self._lock:
            number, self._sent = self._sent, self._sent + 1
        due = self._begins + (number / self._rate if self._rate else 0.0)
        if due >= self._ends or time.perf_counter() >= self._ends:
            return None
        time.sleep(max(due - time.perf_counter(), 0.0))
        return due

    def _fresh(self) -> bytes:
        """A request that was never sent before: its trace is new."""
        body, trace_id = self._bodies[self._sent % _BODIES]
        return body.replace(trace_id, os.urandom(16))


def main(endpoint: str, seconds: str, rate: str, streams: str, seed: str) -> None:
    """See the module."""
    load = Load(float(seconds), float(rate), int(seed))
    threads = [threading.Thread(target=load.stream, args=(endpoint,)) for _ in range(int(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = load.took
    cuts = statistics.quantiles(took, n=100) if len(took) > 1 else [0.0] * 99
    told = {
        "spans": len(took) * SPANS,
        "refused": load.refused,
        "p50": cuts[49],
        "p99": cuts[98],
        "cpu_s": time.process_time(),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
