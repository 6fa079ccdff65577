"""The processes of an ingestion chain, which are killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from tests.kit.backends import run
from tests.kit.backends.build import PINS
from tests.kit.backends.kafka import Kafka
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.serving import Serving

AGENT, CONSUMER = PINS / "kafka-agent.yaml", PINS / "kafka-consumer.yaml"
STOP_SECONDS = 300.0
ROLL_S = 2.0
"""How long batches wait for their group in the columnar tables."""
_UNFINISHED, _UNDELIVERED = 1, 7
_DRAINS = 20
"""How often a collector may start again, if it cannot store everything in STOP_SECONDS."""

# Says each time how many groups it has merged. Other writers may be in the way for a minute. It
# ignores the lease, so that it meets the compactions of collectors, and never waits for a dead one.
_COMPACT = """
import contextlib, sys, time
from cirron_otel.core.columns.compaction import Compactor
from cirron_otel.core.columns.places import open_tables
from cirron_otel.errors import CirronOtelError
store = open_tables(sys.argv[1])
store.upkeep_lease = lambda: contextlib.nullcontext(True)
compactor = Compactor(store, 32 << 20)
while True:
    try:
        print(compactor.run(), flush=True)
    except (CirronOtelError, FileNotFoundError):
        print("away", flush=True)
    time.sleep(1)
"""


def without_long_waits(config: Path) -> str:
    """Return a pinned configuration whose pauses between attempts, and session, are short."""
    settings = yaml.safe_load(config.read_text())
    pauses = {"initial_interval": "500ms", "max_interval": "1s"}
    if config == AGENT:
        settings["exporters"]["kafka"]["retry_on_failure"] |= pauses
    else:
        consumer = settings["receivers"]["kafka"]
        consumer["error_backoff"] |= pauses
        # The shortest session of a consumer that Kafka's defaults allow.
        consumer |= {"session_timeout": "6s", "heartbeat_interval": "1s"}
    return yaml.safe_dump(settings)


class Otelcol:
    """An OpenTelemetry Collector with one configuration, which may run several times."""

    def __init__(self, config: Path | str, directory: Path, settings: dict[str, str]) -> None:
        """Start it; what it writes is below `directory`, which may have what it wrote before."""
        directory.mkdir(exist_ok=True)
        self._config, self._directory, self._settings = config, directory, settings
        self._running = contextlib.ExitStack()
        self.start()

    def start(self) -> None:
        """Start it again, with what its directory holds."""
        self.backend = self._running.enter_context(
            run.otelcol(self._config, self._directory, self._settings)
        )

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.backend.process.kill()
        self._running.close()

    def stop(self) -> None:
        """End it with SIGTERM; safe to call twice."""
        self._running.close()

    def log(self) -> str:
        """All that it has logged."""
        return self.backend.process.log.read_text(errors="replace")


class Collector:
    """A cirron-otel collector at one address, which may run several times."""

    def __init__(
        self, folder: Path, storage: str, tables: str | None = None, **limits: int
    ) -> None:
        """Start it with its spool in `folder`, its rows in `storage`, and in columnar tables."""
        [self.endpoint] = free_endpoints(1)
        self.folder = folder
        config = folder.with_suffix(".yaml")
        lines = [f"{name}: {value}" for name, value in limits.items()]
        config.write_text(
            f"storage: {{url: '{storage}'}}\n"
            f"drain_s: {STOP_SECONDS}\n"
            f"limits: {{{', '.join(lines)}}}\n"
            + ("" if tables is None else f"parquet: {{url: '{tables}', roll_s: {ROLL_S}}}\n")
        )
        self._options = ["--config", str(config), "--grpc", self.endpoint]
        self.start()

    def start(self) -> None:
        """Start it again, with the journal and the spool that it has."""
        self._serving = Serving(self.folder, *self._options)

    @property
    def pid(self) -> int:
        """The id of its first process, which is the parent of the second."""
        return self._serving.process.pid

    def kill(self) -> None:
        """End both of its processes with SIGKILL."""
        translator = self._serving.translator()
        if translator is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(translator, signal.SIGKILL)
        self._serving.kill()

    def has_stored(self) -> bool:
        """Whether its spool has a batch."""
        return any((self.folder / "spool").glob("*.json"))

    def drain(self) -> None:
        """End it when its targets have everything that it acknowledged."""
        for _ in range(_DRAINS):
            if self._end() == 0:
                return
            self.start()
        raise AssertionError(f"a target lacks batches of {self.folder}")

    def stop(self) -> None:
        """End it, if it runs."""
        if self._serving.process.poll() is None:
            self.kill()

    def _end(self) -> int:
        process = self._serving.process
        process.send_signal(signal.SIGTERM)
        code = process.wait(2 * STOP_SECONDS)
        assert code in (0, _UNFINISHED, _UNDELIVERED), self._serving.log.read_text()[-2000:]
        return code


class Compactions:
    """A process that compacts columnar tables again and again."""

    def __init__(self, place: str) -> None:
        """Start it."""
        self._place = place
        self.start()

    def start(self) -> None:
        """Start it again."""
        command = [sys.executable, "-c", _COMPACT, self._place]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def await_one(self) -> None:
        """Wait until it has merged groups."""
        assert self._process.stdout is not None
        while self._process.stdout.readline().strip() in ("0", "away"):
            pass
        assert self._process.poll() is None

    def kill(self) -> None:
        """End it with SIGKILL; safe to call twice."""
        self._process.kill()
        self._process.wait()

    stop = kill


class Topics:
    """The topics and the group of one chain on a shared broker."""

    def __init__(self, broker: Kafka, name: str, partitions: int) -> None:
        """Create the topics for spans and for logs."""
        self.broker, self.partitions = broker, partitions
        self.spans, self.logs = f"{name}.spans", f"{name}.logs"
        self.group = name
        for topic in (self.spans, self.logs):
            broker.create_topic(topic, partitions)

    def settings(self, **others: str) -> dict[str, str]:
        """The variables of an agent or a consumer."""
        return {
            "BROKERS": f"[{self.broker.endpoint}]", "SPANS_TOPIC": self.spans,
            "LOGS_TOPIC": self.logs, "GROUP": self.group,
        } | others  # fmt: skip

    def committed(self, group: str = "") -> int:
        """The number of messages with spans that the group has committed."""
        return sum(self.broker.committed(group or self.group, self.spans).values())

    def end(self) -> int:
        """The number of messages with spans that the broker has."""
        return sum(self.broker.end_offsets(self.spans, self.partitions).values())

    def is_consumed(self, group: str = "") -> bool:
        """Whether the group has committed every message."""
        return self.committed(group) == self.end()
