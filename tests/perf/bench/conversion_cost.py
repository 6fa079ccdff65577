"""The conversion and shapes sections of `make bench`: spool to OTLP and back.

Medians of repeated blocks, beside the floor of parsing and writing alone.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import orjson
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.core.placement.batch_outline import read_outline
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.records.schema import Batch
from cirron_otel.core.translator.codec import encode
from cirron_otel.core.translator.own.encode import Options
from cirron_otel.core.translator.translate import FromOtlp, to_otlp

from . import workload
from .measure import COMMAND, command
from .shapes import SHAPES

BLOCKS = 7


def median_us(work: Callable[[], object], spans: int, blocks: int = BLOCKS) -> float:
    """The median of the blocks' wall time, µs a span."""
    times = []
    gc.collect()
    gc.freeze()  # a collection then skips the benchmark's own objects
    for _ in range(blocks):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) / spans * 1e6


def each(work: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Call `work` with every item, and drop each result, which would slow garbage collection."""
    for item in items:
        work(item)


def print_cost(label: str, value: float, floor: float | None = None, bar: str = "") -> None:
    """One line: µs a span, spans a second, and the ratio to the floor."""
    ratio = f"  {value / floor:5.2f} x floor {bar}" if floor else ""
    print(f"  {label:<46}{value:7.2f} µs/span {1e6 / value:12,.0f} spans/s{ratio}", flush=True)


def encoding(load: workload.Load, native: bool) -> None:
    """Spool → OTLP protobuf, one process: both readings for sessions and segments included."""
    files = list(workload.batches(40, native=native, load=load))
    count = sum(len(read_outline(data).spans) for _, data in files)
    ids = "native" if native else "cirron-sdk"
    print(f"spool -> OTLP protobuf, {load.label}, {ids} ids, {count:,} spans")
    index = SessionIndex()
    sessions(files, index)
    made = [encode(name, data, index, Options()) for name, data in files]
    messages = [TracesData.FromString(item.data) for item in made]
    loads = median_us(lambda: each(orjson.loads, [data for _, data in files]), count)
    serialise = median_us(lambda: each(TracesData.SerializeToString, messages), count)
    floor = loads + serialise
    print_cost("floor: orjson.loads + SerializeToString", floor)
    whole = median_us(lambda: everything(files), count)
    print_cost("all of it", whole, floor, "(bar: 4.5)")
    found = median_us(lambda: sessions(files, SessionIndex()), count)
    print_cost("  of which finding sessions and segments", found)
    print_cost("  of which translating", whole - found)
    exact = median_us(lambda: exactly(files, index), count, 3)
    print_cost("the exact way instead of the fast one", exact + found, floor)
    size = sum(len(data) for _, data in files) / count
    print(f"  {size:.0f} B/span of JSON, {sum(len(m.data) for m in made) / count:.0f} of OTLP")


def sessions(files: list[tuple[str, bytes]], index: SessionIndex) -> None:
    """Both readings of a spool."""
    for name, data in files:
        index.observe(read_outline(data), name)
    by_name = dict(files)
    index.count_all(lambda name: read_outline(by_name[name]))


def everything(files: list[tuple[str, bytes]]) -> None:
    """A complete conversion without reading and writing files."""
    index = SessionIndex()
    sessions(files, index)
    for name, data in files:
        encode(name, data, index, Options())


def exactly(files: list[tuple[str, bytes]], index: SessionIndex) -> None:
    """The same by the exact mappers."""
    for name, data in files:
        messages = to_otlp(
            exactjson.loads(data), index.plan(read_outline(data), True, "f" * 32), name
        )
        TracesData(resource_spans=messages).SerializeToString()


def decoding(load: workload.Load, native: bool) -> None:
    """OTLP protobuf → spool, one process."""
    files = list(workload.batches(40, native=native, load=load))
    count = sum(len(read_outline(data).spans) for _, data in files)
    ids = "native" if native else "cirron-sdk"
    print(f"OTLP protobuf -> spool, {load.label}, {ids} ids, {count:,} spans")
    index = SessionIndex()
    sessions(files, index)
    messages = [encode(name, data, index, Options()).data for name, data in files]
    decoder, encoder = msgspec.json.Decoder(Batch), msgspec.json.Encoder()
    typed = [decoder.decode(data) for _, data in files]
    parse = median_us(lambda: each(TracesData.FromString, messages), count)
    write = median_us(lambda: each(encoder.encode, typed), count)
    floor = parse + write
    print_cost("floor: parse + encode", floor)

    def fast() -> list[bytes]:
        reader = FromOtlp()
        return [whole.data for data in messages if (whole := reader.feed_whole(data))]

    if fast() != [data for _, data in files]:
        raise AssertionError("the batches did not come back byte for byte")
    print_cost(
        "all of it",
        median_us(lambda: each(FromOtlp().feed_whole, messages), count),
        floor,
        "(bar: 8)",
    )

    def exact() -> None:
        reader = FromOtlp()
        for data in messages:
            reader.feed(TracesData.FromString(data).resource_spans)

    print_cost("the exact way instead of the fast one", median_us(exact, count, 1), floor)


def shapes() -> None:
    """Both directions for other shapes of marks and attributes: the ratios to the floors."""
    print(f"  {'the converter, x floor':<46}{'-> OTLP':>9}{'-> spool':>9}  (bars: 4.5 and 8)")
    for load in SHAPES:
        files = list(workload.batches(10, load=load))
        index = SessionIndex()
        sessions(files, index)
        messages = [encode(name, data, index, Options()).data for name, data in files]
        parsed = [TracesData.FromString(data) for data in messages]
        typed = [msgspec.json.decode(data, type=Batch) for _, data in files]
        texts = [data for _, data in files]
        times = [
            median_us(work, 1)
            for work in (
                lambda: (each(orjson.loads, texts), each(TracesData.SerializeToString, parsed)),  # noqa: B023
                lambda: everything(files),  # noqa: B023
                lambda: (each(TracesData.FromString, messages), each(msgspec.json.encode, typed)),  # noqa: B023
                lambda: each(FromOtlp().feed_whole, messages),  # noqa: B023
            )
        ]
        ratios = f"{times[1] / times[0]:9.2f}{times[3] / times[2]:9.2f}"
        print(f"  {load.label:<46}{ratios}", flush=True)


def files(size: int, label: str, jobs: list[int]) -> None:
    """Whole conversions by the command line, files read and written."""
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        spans = workload.write(Path(folder) / "in", size)
        print(f"the command, {label}, {spans:,} spans")
        target = f"{folder}/out.binpb"
        for number in jobs:
            arguments = ["convert", f"{folder}/in", target, "--jobs", str(number)]
            wall, cpu, peak = command(arguments)
            line = f"convert to .binpb, --jobs {number}, peak {peak / 1e6:.0f} MB"
            print_cost(line, wall / spans * 1e6)
            print(f"  {'':<46}{cpu / spans * 1e6:7.2f} µs of CPU a span")
        wall, _, peak = command(["convert", target, f"{folder}/back"])
        print_cost(f"convert back to a spool, peak {peak / 1e6:.0f} MB", wall / spans * 1e6)


class _Receiver(BaseHTTPRequestHandler):
    arrived: threading.Event

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()
        type(self).arrived.set()

    def log_message(self, *_: object) -> None:
        """Log no requests."""


def following(rounds: int = 15) -> None:
    """How long `export --follow` takes from a batch in the spool to its arrival."""
    _Receiver.arrived = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = list(workload.batches(rounds))
    made = [made[-1], *made[:-1]]  # the session is known at once, as with our own SDK
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        spool = Path(folder) / "spool"
        spool.mkdir()
        process = subprocess.Popen(
            [COMMAND, "export", folder, "--follow"],
            env=os.environ | variables,
            stderr=subprocess.DEVNULL,
        )
        delays = []
        for name, data in made:
            temporary = spool / f"{name}.tmp"
            temporary.write_bytes(data)
            _Receiver.arrived.clear()
            start = time.perf_counter()
            temporary.replace(spool / name)
            if not _Receiver.arrived.wait(60):
                raise AssertionError("a batch did not arrive")
            delays.append(time.perf_counter() - start)
        process.terminate()
        process.wait(30)
    server.shutdown()
    later = delays[2:]
    print(
        f"export --follow: median {statistics.median(later) * 1e3:.0f} ms,"
        f" longest {max(later) * 1e3:.0f} ms from the spool to the endpoint"
    )


def conversion(is_big: bool) -> None:
    """Spool to OTLP and back."""
    for load in workload.LOADS:
        for native in (True, False):
            encoding(load, native)
    for load in workload.LOADS:
        for native in (True, False):
            decoding(load, native)
    files(100_000_000, "100 MB", [1, 2])
    following()
    if is_big:
        files(1_000_000_000, "1 GB", [2])
        files(4_000_000_000, "4 GB", [2])
