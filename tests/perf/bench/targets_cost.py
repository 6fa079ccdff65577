"""The CPU time of a span in each target in which a collector stores batches: columnar tables in a
directory and in S3, PostgreSQL, SQLite.

The batches are those of a collector. CPU times are those of the writer, threads included, and of
PostgreSQL's backend; the S3 server's is left out. Files and servers are on the same machine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.columns.target import ColumnsTarget
from cirron_otel.core.delivery.batch_target import BatchTarget, SealedBatch
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.targets.sql.ownership import DEFAULT_CONTEXT
from cirron_otel.core.targets.sql.target import StorageTarget
from cirron_otel.core.translator.foreign.fast import ForeignText
from tests.kit.backends.build import missing as missing_binary
from tests.kit.backends.postgres import missing, postgres
from tests.kit.backends.versitygw import versitygw

from . import workload
from .storage_cost import backend_s

SPANS = 500
"""The spans of a batch."""
GROUP = 4
"""The batches of one transaction of a database. Columnar tables get all batches in one call."""
_REQUEST_BYTES = 32 << 20
_BUCKET = "tables"


@dataclass(frozen=True)
class TargetSizes:
    """How much is measured."""

    batches: int = 80
    blocks: int = 5


TINY = TargetSizes(GROUP, 1)
"""Enough to see that everything runs."""


@dataclass
class Destination:
    """A new target of some kind for each block."""

    label: str
    new: Callable[[], BatchTarget]
    at_once: int
    has_backend: bool = False


def received(batches: int, spans: int) -> list[SealedBatch]:
    """Batches of requests, each with one ResourceSpans of so many spans."""
    now, sealed = time.time_ns(), []
    for number in range(batches):
        text = ForeignText()
        for _ in range(SPANS // spans):
            text.add(_request(spans, now))
        batch_id = os.urandom(16).hex()
        data = text.text(batch_id, now + number)
        sealed.append(SealedBatch(file_name(now + number, batch_id), data))
    return sealed


def _request(spans: int, now: int) -> bytes:
    message = TracesData()
    group = message.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "train"
    scope = group.scope_spans.add()
    trace_id = os.urandom(16)
    for number in range(spans):
        span = scope.spans.add(trace_id=trace_id, span_id=os.urandom(8), name="step")
        span.start_time_unix_nano = now + number * 1000
        span.end_time_unix_nano = now + number * 1000 + 900
        span.attributes.add(key="step").value.int_value = number
        span.attributes.add(key="mode").value.string_value = "train"
        span.attributes.add(key="loss").value.double_value = 1 / (number + 1)
    return message.SerializeToString()


def sealed_by_an_sdk(batches: int) -> list[SealedBatch]:
    """Batches of a program that records with Cirron."""
    workload.START_NS = time.time_ns()
    made = workload.batches(batches, SPANS // 5, load=workload.WITH_ATTRIBUTES)
    return [SealedBatch(name, data) for name, data in made][:batches]


def section(sizes: TargetSizes = TargetSizes()) -> None:
    """Print the costs of a span."""
    print("batches of a collector -> its targets, CPU time of one span")
    loads: dict[str, Callable[[], list[SealedBatch]]] = {
        "ResourceSpans of 500": lambda: received(sizes.batches, 500),
        "ResourceSpans of 50": lambda: received(sizes.batches, 50),
        "batches of an SDK": lambda: sealed_by_an_sdk(sizes.batches),
    }
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder, ExitStack() as stack:
        destinations = list(_destinations(Path(folder), stack))
        for load, make in loads.items():
            _load(load, make, destinations, sizes)


def _destinations(folder: Path, stack: ExitStack) -> Iterator[Destination]:
    """Yield the kinds of targets that this machine has."""

    def place(name: str) -> str:
        return f"{name}-{os.urandom(4).hex()}"

    def tables(url: str) -> BatchTarget:
        return ColumnsTarget(url, _REQUEST_BYTES, lambda _: DEFAULT_CONTEXT)

    everything = 1 << 30
    yield Destination(
        "Parquet, directory", lambda: tables(str(folder / place("tables"))), everything
    )
    if reason := missing_binary("versitygw"):
        print(f"  Parquet, S3: {reason}")
    else:
        server = stack.enter_context(versitygw(folder / "s3"))
        server.make_bucket(_BUCKET)
        os.environ.update(server.environment())
        yield Destination(
            "Parquet, S3", lambda: tables(f"s3://{_BUCKET}/{place('tables')}"), everything
        )
    yield Destination(
        "SQLite", lambda: StorageTarget(f"sqlite:///{folder / place('rows')}.db"), GROUP
    )
    if reason := missing():
        print(f"  PostgreSQL: {reason}")
    else:
        database = stack.enter_context(postgres())
        yield Destination(
            "PostgreSQL", lambda: StorageTarget(database.new_database()), GROUP, has_backend=True
        )


def _load(
    load: str,
    make: Callable[[], list[SealedBatch]],
    destinations: Sequence[Destination],
    sizes: TargetSizes,
) -> None:
    costs: dict[str, list[tuple[float, float]]] = {each.label: [] for each in destinations}
    for _ in range(sizes.blocks):
        for each in destinations:
            target, batches = each.new(), make()
            target.send(make()[:1])  # creates the tables
            with _cpu(target, has_backend=each.has_backend) as taken:
                for first in range(0, len(batches), each.at_once):
                    target.send(batches[first : first + each.at_once])
            target.close()
            costs[each.label].append(taken[0])
    spans = sizes.batches * SPANS
    for label, measured in costs.items():
        writer, server = (statistics.median(c) / spans * 1e6 for c in zip(*measured, strict=True))
        theirs = f", server {server:6.2f} µs" if server else ""
        print(f"  {load:<22} {label:<19} {writer:6.2f} µs{theirs}", flush=True)


@contextmanager
def _cpu(target: BatchTarget, *, has_backend: bool) -> Iterator[list[tuple[float, float]]]:
    """Yield a list that gets the CPU seconds of this process and of the backend."""

    def backend() -> float:
        if not has_backend:
            return 0.0
        assert isinstance(target, StorageTarget)
        [(pid,)] = target.use(lambda store: store.database.rows("SELECT pg_backend_pid()"))  # type: ignore[attr-defined]
        return backend_s(pid)

    theirs, own = backend(), time.process_time()
    taken: list[tuple[float, float]] = []
    yield taken
    own = time.process_time() - own
    taken.append((own, backend() - theirs))
