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

from tests.backends.kafka import Kafka

from .load import SPANS, Load, Rows
from .members import AGENT, CONSUMER, Collector, Otelcol, Topics

PARTITIONS = 6


@dataclass
class Chain:
    """The parts of a chain, and what it has stored."""

    topics: Topics
    load: Load
    rows: Rows
    storage: str
    directory: Path
    seconds: float
    """How long each event is waited for."""
    agents: list[Otelcol]
    collectors: list[Collector] = field(default_factory=list)
    consumers: list[Otelcol] = field(default_factory=list)

    def add_collector(self) -> None:
        """A collector with a new spool, and a consumer beside it that joins the group."""
        number = len(self.collectors)
        self.collectors.append(Collector(self.directory / f"collector-{number}", self.storage))
        self.consumers.append(
            Otelcol(
                CONSUMER,
                self.directory / f"consumer-{number}",
                self.topics.settings(COLLECTOR=self.collectors[-1].endpoint),
            )
        )

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for an event."""
        deadline = time.monotonic() + self.seconds
        while not holds():
            assert time.monotonic() < deadline, "the chain does not get on"
            time.sleep(0.2)

    def until_more_is_committed(self) -> None:
        """Wait until the group has committed a message that it has not committed yet."""
        before = self.topics.committed()
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
        for part in (*self.agents, *self.consumers, *self.collectors):
            part.stop()


@contextlib.contextmanager
def chain(
    broker: Kafka, storage: str, spans: int, directory: Path, seconds: float
) -> Iterator[Chain]:
    """Two agents and two collectors, each with a consumer."""
    topics = Topics(broker, directory.name, PARTITIONS)
    agents = [Otelcol(AGENT, directory / f"agent-{n}", topics.settings()) for n in range(2)]
    urls = [lambda agent=agent: agent.backend.otlp_http for agent in agents]
    load = Load(spans // SPANS, urls)
    running = Chain(
        topics, load, Rows(storage, spans // SPANS * SPANS), storage, directory, seconds, agents
    )
    try:
        running.add_collector()
        running.add_collector()
        yield running
    finally:
        running.stop()


def broker_is_killed(running: Chain) -> None:
    """The agents acknowledge requests while the broker is down."""
    running.until(running.rows.any)
    running.topics.broker.kill()
    running.load.allow(0.35)
    running.load.wait(running.seconds)
    running.topics.broker.start()
    running.until_more_is_committed()


def collector_is_killed(running: Chain) -> None:
    """The messages that its consumer has wait for it."""
    running.collectors[0].kill()
    running.load.allow(0.5)
    running.load.wait(running.seconds)
    running.collectors[0].start()


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


FAULTS = (broker_is_killed, collector_is_killed, agent_is_killed, consumers_come_and_go)


def settle(running: Chain) -> bytearray:
    """Wait until nothing is on its way any more; the number of rows of each span."""
    running.until(running.rows.has_all)
    for agent in running.agents:
        agent.stop()
    running.until(running.topics.is_consumed)
    for consumer in running.consumers:
        consumer.stop()
    for collector in running.collectors:
        collector.drain()
    return running.rows.counts()


def replay(running: Chain) -> bytearray:
    """Deliver every message again, to a new collector; the number of rows of each span."""
    again = Collector(running.directory / "collector-replay", running.storage)
    running.collectors.append(again)
    group = f"{running.topics.group}-replay"
    settings = running.topics.settings(COLLECTOR=again.endpoint, GROUP=group)
    running.consumers.append(Otelcol(CONSUMER, running.directory / "consumer-replay", settings))
    running.until(lambda: running.topics.is_consumed(group))
    again.drain()
    return running.rows.counts()
