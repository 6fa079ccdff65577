"""The cost of a span in PostgreSQL: COPY beside INSERT, and several writers at once.

The server is that of the tests, without fsync, on the same cores as the writers. CPU times are
those of the writer's process and of its backend.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.targets.sql.database import quoted
from cirron_otel.core.targets.sql.days import Days
from cirron_otel.core.targets.sql.postgres import PostgresDatabase
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.url import parse_url
from tests.kit.backends.postgres import Postgres, missing, postgres

from . import workload

GROUP = 4
"""The batches of one transaction."""
STEPS = 100
"""The steps of a batch; each has five spans."""
DAYS = 90
"""The partitions of the case with many days."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class StorageSizes:
    """How much is measured."""

    batches: int = 40
    blocks: int = 5
    writers: tuple[int, ...] = (1, 2, 3)


TINY = StorageSizes(GROUP, 1, (1, 2))
"""Enough to see that everything runs."""


class RowByRow(PostgresDatabase):
    """INSERT for each row, pipelined, as drivers do it for many rows."""

    def bulk_insert(self, table: str, columns: Sequence[str], rows: Iterable[Any]) -> None:
        marks = ", ".join(["%s"] * len(columns))
        statement = f'INSERT INTO "{table}" ({quoted(columns)}) VALUES ({marks})'
        with self._connection.cursor() as cursor:
            cursor.executemany(statement.encode(), list(rows))


class Binary(PostgresDatabase):
    """COPY in the binary format."""

    def bulk_insert(self, table: str, columns: Sequence[str], rows: Iterable[Any]) -> None:
        types = dict(
            self.rows(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
                " WHERE attrelid = ?::regclass",
                f'"{table}"',
            )
        )
        statement = f'COPY "{table}" ({quoted(columns)}) FROM STDIN (FORMAT BINARY)'
        names = [types[name].replace("json", "text") for name in columns]
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.set_types([name.replace("double precision", "float8") for name in names])
            for row in rows:
                copy.write_row(row)


def groups(batches: int) -> Iterator[list[SealedBatch]]:
    """Batches of today, of a session of its own, a group for each transaction."""
    workload.START_NS = time.time_ns()
    made = workload.batches(batches, STEPS, load=workload.WITH_ATTRIBUTES)
    sealed = [SealedBatch(name, data) for name, data in made][:batches]
    for first in range(0, batches, GROUP):
        yield sealed[first : first + GROUP]


def section(sizes: StorageSizes = StorageSizes()) -> None:
    """Print the costs of a span, and the throughput of several writers."""
    if reason := missing():
        print(f"storage: {reason}")
        return
    with postgres() as server:
        _ways(server, sizes)
        _writers(server, sizes)


def _ways(server: Postgres, sizes: StorageSizes) -> None:
    print("batches -> PostgreSQL, CPU time of one span, writer and server")
    cases = {
        "COPY, as stored": PostgresDatabase,
        "INSERT row by row": RowByRow,
        "COPY, binary": Binary,
        f"COPY, {DAYS} days of partitions": PostgresDatabase,
    }
    urls = {label: server.new_database() for label in cases}
    [*_, many] = cases
    with Storage.open(urls[many]) as storage:
        days, today = Days(storage.database), time.time_ns() // 86_400_000_000_000
        for day in range(today - DAYS, today + 3):
            days._create(day)
    costs: dict[str, list[tuple[float, float]]] = {label: [] for label in cases}
    for _ in range(sizes.blocks):
        for label, kind in cases.items():
            location = parse_url(urls[label])
            database = kind(location, create=True)
            storage = Storage(database, location)
            storage.migrate()
            work = list(groups(sizes.batches))
            with _cpu(database) as taken:
                for group in work:
                    storage.write(group)
            storage.close()
            costs[label].append(taken[0])
    spans = sizes.batches * STEPS * 5
    totals = {label: statistics.median(map(sum, each)) for label, each in costs.items()}
    for label, each in costs.items():
        writer, backend = (statistics.median(c) / spans * 1e6 for c in zip(*each, strict=True))
        ratio = totals[label] / totals["COPY, as stored"]
        print(f"  {label:<30} writer {writer:6.2f} µs, server {backend:6.2f} µs: "
              f"{ratio:5.2f} x COPY", flush=True)  # fmt: skip


@contextmanager
def _cpu(database: PostgresDatabase) -> Iterator[list[tuple[float, float]]]:
    """Yield a list that gets the CPU seconds of this process and of the backend."""
    [(pid,)] = database.rows("SELECT pg_backend_pid()")
    own, theirs = time.process_time(), backend_s(pid)
    taken: list[tuple[float, float]] = []
    yield taken
    taken.append((time.process_time() - own, backend_s(pid) - theirs))


def backend_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


_WORKER = """
import sys, time
from cirron_otel.core.targets.sql.storage import Storage
from tests.perf.bench.storage_cost import _cpu, groups
with Storage.open(sys.argv[1]) as storage:
    work = list(groups(int(sys.argv[2])))
    print("ready", flush=True)
    sys.stdin.readline()
    with _cpu(storage.database) as taken:
        for group in work:
            storage.write(group)
    print(sum(taken[0]))
"""


def _writers(server: Postgres, sizes: StorageSizes) -> None:
    print("several writers of one database, wall time")
    rates: dict[int, list[tuple[float, float]]] = {count: [] for count in sizes.writers}
    for _ in range(sizes.blocks):
        for count in sizes.writers:
            rates[count].append(_rate(server.new_database(), count, sizes.batches))
    first = statistics.median(rate for rate, _ in rates[sizes.writers[0]])
    for count, each in rates.items():
        rate = statistics.median(rate for rate, _ in each)
        cpu = statistics.median(cpu for _, cpu in each)
        print(f"  {count} writer{'s' * (count > 1):<2} {rate:9,.0f} spans/s  "
              f"{rate / first:5.2f} x one, {cpu:6.2f} µs of CPU a span", flush=True)  # fmt: skip


def _rate(url: str, count: int, batches: int) -> tuple[float, float]:
    """Return the spans per second of all writers together, and their CPU time of a span in µs."""
    Storage.open(url).close()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, url, str(batches)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    begun = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    spent = sum(float(worker.communicate()[0]) for worker in workers)
    spans = count * batches * STEPS * 5
    return spans / (time.perf_counter() - begun), spent / spans * 1e6
