"""A real Kafka broker for the tests: one process in KRaft mode, on loopback.

```python
with kafka(tmp_path) as broker:
    broker.create_topic("otlp_spans", partitions=4)
    broker.kill()
    broker.start()  # the same data and the same address
    broker.end_offsets("otlp_spans")
```
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.admin import OffsetSpec as Offset
from kafka.errors import KafkaError, TopicAlreadyExistsError
from kafka.structs import TopicPartition

from .jars import missing, place
from .process import (
    ATTEMPTS,
    BackendError,
    Process,
    free_endpoints,
)

HEAP_MIB = 512
MESSAGE_BYTES = 37_748_736
"""The largest message of a topic, as docs/ingestion.md sets it."""
READY_SECONDS = 180.0
TOOL_SECONDS = 180.0
_CLUSTER = "Y2lycm9uLW90ZWwtdGVzdA"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{controller}
listeners=PLAINTEXT://{endpoint},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{endpoint}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
# A broker that is started again has to wait until its session before a kill has ended.
broker.session.timeout.ms=6000
group.initial.rebalance.delay.ms=0
"""

_Result = TypeVar("_Result")


class Kafka:
    """A broker that can be killed, and started again with the data that it has."""

    def __init__(self, directory: Path) -> None:
        """Start a broker whose data is below `directory`; a new one if it has none."""
        self.directory = directory
        self._process: Process | None = None
        self._admin: KafkaAdminClient | None = None
        for attempt in range(1, ATTEMPTS + 1):
            self.endpoint, controller = free_endpoints(2)
            self._settings.write_text(
                _SETTINGS.format(endpoint=self.endpoint, controller=controller, directory=directory)
            )
            if not (directory / "data" / "meta.properties").exists():
                self._format()
            try:
                self.start()
            except BackendError:
                # Another process may have taken a port in the meantime.
                is_taken = "Address already in use" in self.log.read_text(errors="replace")
                if attempt == ATTEMPTS or not is_taken:
                    raise
            else:
                break

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        self._process = Process(_java("kafka.Kafka", str(self._settings)), {}, self.log)
        try:
            self._ask(lambda admin: admin.list_topics())
        except BackendError:
            self.stop()
            raise

    def kill(self) -> None:
        """End the broker with SIGKILL."""
        self._disconnect()
        if self._process is not None:
            self._process.kill()

    @property
    def pid(self) -> int:
        """The id of the broker's process."""
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the broker's process runs."""
        return self._process is not None and self._process.running()

    def stop(self) -> None:
        """End the broker; safe to call twice."""
        self._disconnect()
        if self._process is not None:
            self._process.stop()

    def create_topic(self, name: str, partitions: int, message_bytes: int = MESSAGE_BYTES) -> None:
        """Create a topic, and wait until the broker serves it."""
        topic = NewTopic(
            name, partitions, 1, topic_configs={"max.message.bytes": str(message_bytes)}
        )

        def create(admin: KafkaAdminClient) -> None:
            with contextlib.suppress(TopicAlreadyExistsError):  # the first answer may be lost
                admin.create_topics([topic])

        self._ask(create)
        self.end_offsets(name, partitions)

    def end_offsets(self, topic: str, partitions: int) -> dict[int, int]:
        """The number of messages that each partition has received."""
        asked = {TopicPartition(topic, number): Offset.LATEST for number in range(partitions)}
        offsets = self._ask(lambda admin: admin.list_partition_offsets(asked))
        return {partition.partition: found.offset for partition, found in offsets.items()}

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offset that a consumer group has committed, by partition; without any, {}."""
        found = self._ask(lambda admin: admin.list_group_offsets([group]))[group]
        return {
            partition.partition: offset.offset
            for partition, offset in found.items()
            if partition.topic == topic and offset.offset >= 0
        }

    def holders(self, group: str, topic: str) -> list[int]:
        """The numbers of partitions that the members of a consumer group have, zeros left out."""
        described = self._ask(lambda admin: admin.describe_groups([group]))[group]
        if described["group_state"] != "Stable":
            return []
        counts = [
            sum(len(each["partitions"]) for each in _assigned(member) if each["topic"] == topic)
            for member in described["members"]
        ]
        return sorted(count for count in counts if count)

    @property
    def log(self) -> Path:
        """The broker's log."""
        return self.directory / "kafka.log"

    @property
    def _settings(self) -> Path:
        return self.directory / "server.properties"

    def _format(self) -> None:
        command = _java(
            "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._settings)
        )
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TOOL_SECONDS
        )
        if done.returncode:
            raise BackendError(f"Kafka's storage could not be formatted:\n{done.stderr[-2000:]}")

    def _ask(self, question: Callable[[KafkaAdminClient], _Result]) -> _Result:
        """The broker's answer, asked for until it comes; BackendError if it does not."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                if self._admin is None:
                    self._admin = KafkaAdminClient(
                        bootstrap_servers=self.endpoint, reconnect_backoff_max_ms=500
                    )
                return question(self._admin)
            except (KafkaError, OSError) as error:
                self._disconnect()
                assert self._process is not None
                if not self._process.running() or time.monotonic() > deadline:
                    raise BackendError(f"no answer: {error!r}\n{self._process.tail()}") from None
            time.sleep(0.1)

    def _disconnect(self) -> None:
        if self._admin is not None:
            with contextlib.suppress(KafkaError, OSError):
                self._admin.close()
            self._admin = None


@contextlib.contextmanager
def kafka(directory: Path) -> Iterator[Kafka]:
    """Run a broker with its data and its log below `directory`, which may have those of another."""
    if reason := missing():
        raise BackendError(f"{reason}: run `make backends`")
    broker = Kafka(directory)
    try:
        yield broker
    finally:
        broker.stop()


def _assigned(member: dict[str, Any]) -> list[dict[str, Any]]:
    assignment = member["member_assignment"]
    return list(assignment["assigned_partitions"]) if assignment else []


def _java(program: str, *arguments: str) -> list[str]:
    return [
        "java", f"-Xmx{HEAP_MIB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-cp", f"{place()}/*", program, *arguments,
    ]  # fmt: skip
