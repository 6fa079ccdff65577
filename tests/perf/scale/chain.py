r"""Simulated ranks through the complete chain: agent, Kafka, collectors, PostgreSQL and Parquet.

    python -m tests.perf.scale.chain --ranks 256 --minutes 1 --budget 5 --flush 10 \
        --collectors 1 2 3

The ranks send to an agent, which fills a topic. Then, for each number of collectors, a new group of
consumers reads the topic from its beginning into a new database, so that the collectors never wait
for the sender. Each line of the output is a JSON document: the spans that were sent, the CPU time
of each stage for each of them, the spans stored per second, and whether each is stored once. The
exit status is 1 if the database differs from what was sent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.backends.kafka import Kafka, kafka
from tests.kit.backends.postgres import Postgres, postgres
from tests.system.kafka.members import (
    AGENT,
    CONSUMER,
    Collector,
    Otelcol,
    Topics,
)
from tests.tools.conftest import COMMAND

from .ranks import Job
from .simulate import (
    Tally,
    await_stored,
    requests_of,
    send,
    stored,
    target_of,
)
from .usage import Stages, Usage, per_span

PARTITIONS = 12
_STORED_S = 3600.0
_QUIET_S = 5.0
"""If no message is added for this time, the agent's queue is empty."""


def fill(job: Job, topics: Topics, broker: Kafka, folder: Path) -> tuple[Tally, dict[str, Any]]:
    """Send the batches of a job to a new topic; return what was sent, and the costs."""
    agent = Otelcol(AGENT, folder, topics.settings())
    stages: Stages = {
        "ranks": lambda: [os.getpid()],
        "agent": lambda: [agent.backend.process.pid],
        "Kafka": lambda: [broker.pid],
    }
    try:
        begun = time.monotonic()
        with Usage(stages).watched() as usage:
            target = target_of(agent.backend.otlp_http)
            sent = send(requests_of(job), target)
            target.close()
            seconds = time.monotonic() - begun
            _await_quiet(topics)
    finally:
        agent.stop()
    costs = {"sent": sent.to_json(), "messages": topics.end(), "seconds": round(seconds, 1)}
    return sent, costs | {"stages": per_span(usage.to_json(), sent.spans)}


def _await_quiet(topics: Topics) -> None:
    last, since = -1, time.monotonic()
    while time.monotonic() < since + _QUIET_S:
        if (end := topics.end()) != last:
            last, since = end, time.monotonic()
        time.sleep(0.2)


class Storing:
    """Several collectors with one database, each with a consumer of the same group."""

    def __init__(self, count: int, topics: Topics, server: Postgres, url: str, folder: Path):
        """Start the collectors. The group is named after `folder`, which may have their spools."""
        folder.mkdir(exist_ok=True)
        self._topics, self._server, self._folder = topics, server, folder
        self.collectors = [Collector(folder / f"collector-{n}", url) for n in range(count)]
        self._consumers: list[Otelcol] = []
        self.stages: Stages = {
            "Kafka": lambda: [topics.broker.pid],
            "consumer": lambda: [each.backend.process.pid for each in self._consumers],
            "collector": lambda: [each.pid for each in self.collectors],
            "PostgreSQL": lambda: [server.process.pid],
        }

    def start(self) -> None:
        """Start the consumers."""
        for n, each in enumerate(self.collectors):
            settings = self._topics.settings(COLLECTOR=each.endpoint, GROUP=self._folder.name)
            self._consumers.append(Otelcol(CONSUMER, self._folder / f"consumer-{n}", settings))

    def stop(self) -> None:
        """End all processes, the collectors without waiting."""
        for consumer in self._consumers:
            consumer.stop()
        for collector in self.collectors:
            collector.stop()


def consume(
    count: int, sent: Tally, topics: Topics, server: Postgres, folder: Path
) -> tuple[str, dict[str, Any]]:
    """Store the messages of a topic through `count` collectors; return the database and figures."""
    url = server.new_database()
    storing = Storing(count, topics, server, url, folder)
    try:
        with Usage(storing.stages).watched() as usage:
            begun = time.monotonic()
            storing.start()
            await_stored(url, sent.batches, _STORED_S)
            seconds = time.monotonic() - begun
    finally:
        storing.stop()
    return url, {
        "collectors": count,
        "is_equal": stored(url).ids == sent.ids,
        "seconds": round(seconds, 1),
        "spans_per_second": round(sent.spans / seconds),
        "stages": per_span(usage.to_json(), sent.spans),
    }


def to_parquet(url: str, spans: int, folder: Path) -> dict[str, Any]:
    """Convert a database to Parquet; return the CPU time of the conversion, and the size."""
    process = subprocess.Popen([COMMAND, "convert", url, f"parquet:{folder}"])
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise AssertionError(f"convert ended with {os.waitstatus_to_exitcode(status)}")
    cpu_s = used.ru_utime + used.ru_stime
    size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    return {
        "parquet": {
            "cpu_s": round(cpu_s, 2),
            "cpu_us_per_span": round(cpu_s / max(spans, 1) * 1e6, 1),
            "bytes_per_span": round(size / max(spans, 1), 1),
            "peak_mib": round(used.ru_maxrss / 1024),
        }
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.scale.chain")
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--budget", type=float, default=5, help="0: none")
    parser.add_argument("--flush", type=int, default=10)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--collectors", type=int, nargs="+", default=[1, 2, 3], metavar="N")
    given = parser.parse_args(arguments)
    job = Job.of(
        given.ranks, 60 * given.minutes, given.seed, given.budget or None, given.scale, given.flush
    )
    with tempfile.TemporaryDirectory(prefix="cirron-otel-chain-") as name:
        folder = Path(name)
        with kafka(folder) as broker, postgres() as server:
            topics = Topics(broker, "simulated", PARTITIONS)
            sent, costs = fill(job, topics, broker, folder / "agent")
            print(json.dumps(costs), flush=True)
            is_equal = True
            for count in given.collectors:
                group = folder / f"with-{count}"
                url, figures = consume(count, sent, topics, server, group)
                print(json.dumps(figures), flush=True)
                is_equal = is_equal and figures["is_equal"]
            print(json.dumps(to_parquet(url, sent.spans, folder / "columns")), flush=True)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
