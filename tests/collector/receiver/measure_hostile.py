"""A program: measures one hostile request, and prints what became of it and what it took."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.collector.receiver.measure import MalformedError, TooManyElementsError, measure
from cirron_otel.core.otlp.wire import encode_varint

MIB = 1 << 20


def field(tag: bytes, content: bytes) -> bytes:
    return tag + encode_varint(len(content)) + content


def within(*tags: str) -> Callable[[bytes], bytes]:
    """What puts content into a field of each of the tags, the outermost first."""

    def wrap(content: bytes) -> bytes:
        for tag in reversed(tags):
            content = field(bytes.fromhex(tag), content)
        return content

    return wrap


IN_SCOPE = within("0a", "12")
IN_SPAN = within("0a", "12", "12")
VALUE = within("0a", "12", "12", "4a", "12")
"""In the value of an attribute of a span."""


def nested(levels: int, content: bytes = b"") -> bytes:
    """Arrays in arrays."""
    for _ in range(levels):
        content = field(b"\x2a", field(b"\x0a", content))
    return content


def attribute(levels: int) -> bytes:
    return field(b"\x4a", field(b"\x12", nested(levels)))


REQUESTS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "4 MiB of empty resources": lambda: b"\x0a\x00" * (2 * MIB),
    "4 MiB of empty spans": lambda: IN_SCOPE(b"\x12\x00" * (2 * MIB - 10)),
    "4 MiB of empty attributes": lambda: IN_SPAN(b"\x4a\x00" * (2 * MIB - 10)),
    "4 MiB of empty values": lambda: VALUE(field(b"\x2a", b"\x0a\x00" * (2 * MIB - 20))),
    "4 MiB of empty values, thirty levels deep": lambda: VALUE(
        nested(29, field(b"\x2a", b"\x0a\x00" * (2 * MIB - 200)))
    ),
    "10 M attributes": lambda: IN_SPAN(b"\x4a\x00" * 10_000_000),
    "10 M attributes of 250,000 spans": lambda: IN_SCOPE(
        field(b"\x12", b"\x4a\x00" * 40) * 250_000
    ),
    "arrays nested beyond what parsers take": lambda: VALUE(nested(10_000)),
    "100,000 deep arrays": lambda: IN_SPAN(attribute(25) * 100_000),
    "4 MiB of unknown fields": lambda: b"\x78\x00" * (2 * MIB),
    "4 MiB of unknown fields between known": lambda: IN_SPAN(b"\x78\x00\x30\x01" * (MIB - 10)),
    "4 MiB of short names": lambda: IN_SPAN(b"\x2a\x01a" * (4 * MIB // 3 - 10)),
    "4 MiB of texts in an entity": lambda: within("0a", "0a", "1a")(b"\x1a\x00" * (2 * MIB - 10)),
    "20 MiB of unknown fields": lambda: b"\x78\x00" * (10 * MIB),
    "20 MiB of one text": lambda: IN_SPAN(field(b"\x2a", b"a" * (20 * MIB))),
    "4 MiB of groups": lambda: (b"\x7b" * 50 + b"\x7c" * 50) * (4 * MIB // 100),
    "20 MiB of groups": lambda: (b"\x7b" * 50 + b"\x7c" * 50) * (20 * MIB // 100),
}


def run(name: str, what: Callable[[bytes], object] = measure) -> dict[str, object]:
    body = REQUESTS[name]()
    what(b"\x0a\x00")
    Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): resets VmHWM
    base = _kib("VmRSS")
    start = time.process_time()
    try:
        outcome = repr(what(body))
    except (MalformedError, TooManyElementsError) as error:
        outcome = type(error).__name__
    took = time.process_time() - start
    return {"outcome": outcome, "took_s": took, "over_kib": _kib("VmHWM") - base, "size": len(body)}


def _kib(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise LookupError(name)


if __name__ == "__main__":
    if sys.argv[1] == "--parse":
        done = run(
            "4 MiB of empty spans", lambda body: len(TracesData.FromString(body).resource_spans)
        )
    else:
        done = run(sys.argv[1])
    print(json.dumps(done))
