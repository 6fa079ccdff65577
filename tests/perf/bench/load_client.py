"""A client that sends OTLP requests as fast as they are acknowledged, or at a given rate.

`load_client.py ENDPOINT SECONDS RATE STREAMS SEED TRAFFIC BODIES`: requests of 500 spans over gRPC,
RATE of them a second (0: as many as there is room for), at most STREAMS at once; their spans are
`alike` or `varied`, and BODIES of them differ in more than their trace. At least one is sent.
Prints one JSON object: how many were acknowledged and how many refused, and how long
acknowledgements took, in seconds. With a rate the time runs from when a request was due, so that a
server that stalls cannot hide it.
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
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, TracesData

SPANS = 500
_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
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


_FIELDS = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}


def _put(attribute: object, value: str | bool | int | float) -> None:
    setattr(attribute.value, _FIELDS[type(value)], value)  # type: ignore[attr-defined]


_OPERATIONS = {
    "GET /item": (
        "http.request.method", "http.response.status_code", "url.full", "server.address",
        "client.port", "user_agent.original",
    ),
    "SELECT items": (
        "db.system.name", "db.query.text", "db.namespace", "server.address",
        "db.response.returned_rows",
    ),
    "publish orders": (
        "messaging.system", "messaging.destination.name", "messaging.message.id",
        "messaging.message.body.size",
    ),
    "render": ("template", "cached", "ratio", "tags"),
    "call": ("rpc.system", "rpc.service", "rpc.method", "rpc.grpc.status_code", "enabled"),
}  # fmt: skip
_OWN = ("url.full", "db.query.text", "messaging.message.id")
"""What is another text in every span."""
_NUMBERS = ("code", "port", "rows", "size")


def varied(choice: random.Random, spans: int = SPANS) -> tuple[bytes, bytes]:
    """A request as `request` makes it, whose spans are of several operations.

    A quarter of them have an event, a tenth a link; some have failed, or a `tracestate`. How often
    is made up, and no recording of a service.
    """
    data, trace_id = request(choice, spans)
    message = TracesData.FromString(data)
    for span in message.resource_spans[0].scope_spans[0].spans:
        name = choice.choice(tuple(_OPERATIONS))
        span.name = name if choice.random() < 0.7 else f"{name} {choice.randrange(50)}"
        span.kind = choice.choice(Span.SpanKind.values()[1:])
        del span.attributes[:]
        for key in _OPERATIONS[name]:
            _put_some(span.attributes.add(key=key), key, choice)
        _put_more(span, choice)
    return message.SerializeToString(), trace_id


def _put_some(attribute: object, key: str, choice: random.Random) -> None:
    if key == "tags":
        for _ in range(3):
            tag = f"tag {choice.randrange(100)}"
            attribute.value.array_value.values.add(string_value=tag)  # type: ignore[attr-defined]
    elif key in ("cached", "enabled"):
        _put(attribute, choice.random() < 0.5)
    elif key == "ratio":
        _put(attribute, choice.random())
    elif key.endswith(_NUMBERS):
        _put(attribute, choice.randrange(10**5))
    elif key in _OWN:
        _put(attribute, f"one of many, {choice.randrange(10**9)}, with an é and {key} in it")
    else:
        _put(attribute, f"value {choice.randrange(20)}")


def _put_more(span: Span, choice: random.Random) -> None:
    chance = choice.random()
    if chance < 0.15:
        event = span.events.add(name="exception", time_unix_nano=span.start_time_unix_nano + 5)
        _put(event.attributes.add(key="exception.type"), "ValueError")
        _put(event.attributes.add(key="exception.message"), f"not {choice.randrange(1000)}")
        _put(event.attributes.add(key="exception.stacktrace"), "in a line of a file\n" * 10)
        span.status.code, span.status.message = 2, f"it failed {choice.randrange(100)} times"
    elif chance < 0.25:
        event = span.events.add(name="message", time_unix_nano=span.start_time_unix_nano + 5)
        _put(event.attributes.add(key="message.id"), choice.randrange(10**6))
    elif chance < 0.35:
        link = span.links.add(trace_id=choice.randbytes(16), span_id=choice.randbytes(8))
        _put(link.attributes.add(key="why"), "batch")
    elif chance < 0.45:
        span.trace_state = f"vendor={choice.randrange(100)}"


TRAFFIC = {"alike": request, "varied": varied}


class Load:
    """What all streams share."""

    def __init__(self, seconds: float, rate: float, seed: int, traffic: str, bodies: int) -> None:
        choice = random.Random(seed)
        self._bodies = [TRAFFIC[traffic](choice) for _ in range(bodies)]
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
        if number and (due >= self._ends or time.perf_counter() >= self._ends):
            return None
        time.sleep(max(due - time.perf_counter(), 0.0))
        return due

    def _fresh(self) -> bytes:
        """A request that was never sent before: its trace is new."""
        body, trace_id = self._bodies[self._sent % len(self._bodies)]
        return body.replace(trace_id, os.urandom(16))


def main(
    endpoint: str, seconds: str, rate: str, streams: str, seed: str, traffic: str, bodies: str
) -> None:
    """See the module."""
    load = Load(float(seconds), float(rate), int(seed), traffic, int(bodies))
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
