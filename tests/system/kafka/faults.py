"""The complete chain under load, with each of its parts killed.

The clients send a share of all spans during each fault, so that it always meets messages on their
way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cirron_otel.core.columns.bucket import BucketTables
from cirron_otel.core.columns.compaction import Compactor
from cirron_otel.core.columns.places import open_tables
from tests.kit.backends.kafka import Kafka

from .load import SPANS, Load
from .members import (
    AGENT,
    CONSUMER,
    Collector,
    Compactions,
    Otelcol,
    Topics,
)
from .stored import Rows, TableRows

PARTITIONS = 6


@dataclass
class Chain:
    """The parts of a chain, and what it has stored."""

    topics: Topics
    load: Load
    rows: Rows
    tables: TableRows
    storage: str
    directory: Path
    seconds: float
    """How long each event is waited for."""
    consumer: Path | str
    """The configuration of each consumer."""
    agents: list[Otelcol]
    compactions: Compactions
    collectors: list[Collector] = field(default_factory=list)
    consumers: list[Otelcol] = field(default_factory=list)

    def add_collector(self) -> None:
        """A collector with a new spool, and a consumer beside it that joins the group."""
        number = len(self.collectors)
        self.collectors.append(self.new_collector(f"collector-{number}"))
        self.consumers.append(
            Otelcol(
                self.consumer,
                self.directory / f"consumer-{number}",
                self.topics.settings(COLLECTOR=self.collectors[-1].endpoint),
            )
        )

    def new_collector(self, name: str) -> Collector:
        """A collector that stores in the database and in the tables."""
        return Collector(self.directory / name, self.storage, self.tables.place)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for an event."""
        deadline = time.monotonic() + self.seconds
        asked = time.monotonic()
        while not holds():
            now = time.monotonic()
            assert now < deadline, "the chain does not get on"
            time.sleep(max(0.2, now - asked))  # some questions take long
            asked = time.monotonic()

    def until_more_is_committed(self, before: int) -> None:
        """Wait until the group has committed more than `before` messages."""
        self.until(lambda: self.topics.committed() > before)

    def until_divided_among(self, members: int) -> None:
        """Wait until so many consumers have partitions, and together all of them."""

        def are_divided() -> bool:
            held = self.topics.broker.holders(self.topics.group, self.topics.spans)
            return len(held) == members and sum(held) == PARTITIONS

        self.until(are_divided)

    def stop(self) -> None:
        """End every part."""
        self.load.stop()
        for part in (*self.agents, *self.consumers, *self.collectors, self.compactions):
            part.stop()


@contextlib.contextmanager
def chain(
    broker: Kafka,
    storage: str,
    tables: str,
    spans: int,
    directory: Path,
    seconds: float,
    agent: Path | str = AGENT,
    consumer: Path | str = CONSUMER,
) -> Iterator[Chain]:
    """Two agents and two collectors, each with a consumer; `tables` is a directory or a bucket.

    `agent` and `consumer` are configurations: the pinned files by default.
    """
    topics = Topics(broker, directory.name, PARTITIONS)
    agents = [Otelcol(agent, directory / f"agent-{n}", topics.settings()) for n in range(2)]
    urls = [lambda agent=agent: agent.backend.otlp_http for agent in agents]
    load = Load(spans // SPANS, urls)
    count = spans // SPANS * SPANS
    running = Chain(
        topics, load, Rows(storage, count), TableRows(tables, count), storage, directory, seconds,
        consumer, agents, Compactions(tables),
    )  # fmt: skip
    try:
        running.add_collector()
        running.add_collector()
        yield running
    finally:
        running.stop()


def broker_is_killed(running: Chain) -> None:
    """The agents acknowledge requests while the broker is down."""
    running.until(lambda: running.rows.count() > 0)
    before = running.topics.end()
    running.topics.broker.kill()
    running.load.allow(0.35)
    running.load.wait(running.seconds)
    running.topics.broker.start()
    running.until(lambda: running.topics.end() > before)


def collector_is_killed(running: Chain) -> None:
    """The messages that its consumer has wait for it."""
    running.collectors[0].kill()
    running.load.allow(0.45)
    running.load.wait(running.seconds)
    running.collectors[0].start()


def all_collectors_are_killed(running: Chain) -> None:
    """Some of them while they write tables, as the process that compacts these."""
    before = running.topics.committed()
    running.load.allow(0.5)
    running.until_more_is_committed(before)
    running.compactions.await_one()
    running.compactions.kill()
    for collector in running.collectors:
        collector.kill()
    before = running.topics.committed()
    running.load.allow(0.55)
    running.load.wait(running.seconds)
    running.compactions.start()
    for collector in running.collectors:
        collector.start()
    running.until_more_is_committed(before)


def agent_is_killed(running: Chain) -> None:
    """Its clients send their requests again when it is back."""
    running.load.allow(0.65)
    running.agents[0].kill()
    running.agents[0].start()
    running.load.wait(running.seconds)


def consumers_come_and_go(running: Chain) -> None:
    """A third joins; of the others one is killed, and one leaves and comes back."""
    running.add_collector()
    running.until_divided_among(3)
    running.load.allow(0.8)
    running.load.wait(running.seconds)
    running.load.allow(1.0)
    running.consumers[0].kill()
    running.consumers[1].stop()
    running.until_divided_among(1)
    running.consumers[1].start()
    running.until_divided_among(2)
    running.load.wait(running.seconds)


def all_collectors_are_killed_while_they_store(running: Chain) -> None:
    """Much of the load is then in their spools, and a part of it in the database and the tables."""
    running.until(lambda: running.rows.count() > running.rows.spans // 2)
    for collector in running.collectors:
        collector.kill()
    for collector in running.collectors:
        collector.start()


FAULTS = (
    broker_is_killed,
    collector_is_killed,
    all_collectors_are_killed,
    agent_is_killed,
    consumers_come_and_go,
    all_collectors_are_killed_while_they_store,
)  # fmt: skip


def stored(running: Chain) -> dict[str, bytearray]:
    """The number of rows of each span, in each place and by each way of reading."""
    found = {"PostgreSQL": running.rows.counts(), "Parquet": running.tables.counts()}
    if "://" not in running.tables.place:
        found["Parquet, SQL"] = running.tables.counts_of_sql()
    return found


def settle(running: Chain) -> dict[str, bytearray]:
    """Wait until nothing is on its way any more; return what is stored."""
    running.until(running.rows.has_all)
    for agent in running.agents:
        agent.stop()
    running.until(running.topics.is_consumed)
    for consumer in running.consumers:
        consumer.stop()
    for collector in running.collectors:
        collector.drain()
    return stored(running)


def replay(running: Chain) -> dict[str, bytearray]:
    """Deliver every message again, to a new collector; return what is stored."""
    again = running.new_collector("collector-replay")
    running.collectors.append(again)
    group = f"{running.topics.group}-replay"
    settings = running.topics.settings(COLLECTOR=again.endpoint, GROUP=group)
    folder = running.directory / "consumer-replay"
    running.consumers.append(Otelcol(running.consumer, folder, settings))
    running.until(lambda: running.topics.is_consumed(group))
    again.drain()
    return stored(running)


def compact(running: Chain) -> dict[str, bytearray]:
    """Compact the tables to the end; return what is stored, and in a directory, in all files."""
    running.compactions.kill()
    store = open_tables(running.tables.place)
    if isinstance(store, BucketTables):  # the lease of the killed process, which lasts a while
        store._objects.delete("_writing/upkeep")
    compactor = Compactor(store, 128 << 20)
    while compactor.run():
        pass
    found = stored(running)
    if "://" not in running.tables.place:
        found["Parquet, all files"] = running.tables.counts_of_files()
    return found
