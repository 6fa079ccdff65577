"""Where the collector's time goes: its parts, each alone, on the requests of the load."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.collector.receiver.measure import measure
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.translator.foreign.fast import ForeignText

from .load_client import SPANS, request

_REQUESTS = 20


def _us(work: Callable[[], object], blocks: int) -> float:
    """CPU of this thread, µs a span: the median of the blocks."""
    took = []
    for _ in range(blocks):
        start = time.thread_time_ns()
        work()
        took.append(time.thread_time_ns() - start)
    return sorted(took)[blocks // 2] / 1e3 / _REQUESTS / SPANS


def section(blocks: int) -> None:
    """Measure and print them."""
    choice = random.Random(0)
    bodies = [request(choice)[0] for _ in range(_REQUESTS)]

    def added() -> ForeignText:
        text = ForeignText()
        for body in bodies:
            text.add(body)
        return text

    made = added().text("0" * 32, 1)
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        writer = SpoolWriter(Path(folder), 10**12)
        names = iter([file_name(1, f"00000000-0000-4000-8000-{n:012x}") for n in range(100)])
        parts = {
            "measuring a request before it is parsed": _us(
                lambda: [measure(b) for b in bodies], blocks
            ),
            "parsing it": _us(lambda: [TracesData.FromString(body) for body in bodies], blocks),
            "parsing it, and the rows of its spans": _us(added, blocks),
            "all that, and the text of the batch": _us(lambda: added().text("0" * 32, 1), blocks),
            "sealing the batch": _us(lambda: writer.write(made, next(names)), blocks),
        }
    for name, cost in parts.items():
        print(f"    {name:<44}{cost:6.2f} µs of CPU a span")
