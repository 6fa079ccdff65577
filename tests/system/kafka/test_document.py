"""The commands and configurations of docs/ingestion.md."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.backends.build import PINS, binary
from tests.kit.backends.jars import place
from tests.kit.backends.kafka import MESSAGE_BYTES, Kafka
from tests.kit.backends.process import Process, free_endpoints

from .load import SPANS, request
from .members import AGENT, CONSUMER
from .stored import Rows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1800)]

PAGE = (PINS.parent / "docs" / "ingestion.md").read_text()
SECONDS = 300.0
_TOPICS = """\
#!/bin/sh
exec java -Xmx256m -cp '{jars}/*' org.apache.kafka.tools.TopicCommand "$@"
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def replaced(text: str, values: dict[str, str]) -> str:
    """The text with other values, each of which it has."""
    for value, other in values.items():
        assert value in text, value
        text = text.replace(value, other)
    return text


@contextlib.contextmanager
def started(command: str, directory: Path, **environment: str) -> Iterator[None]:
    """Run a command of the page from the checkout; otelcol is ready when the block begins."""
    [health] = free_endpoints(1)
    path = f"{binary('otelcol').parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = f"cd {shlex.quote(str(PINS.parent))} && {command}"
    process = Process(
        ["bash", "-euc", f"exec bash -c {shlex.quote(script)}"],
        {"PATH": path, "HEALTH": health, **environment},
        directory / "command.log",
    )
    try:
        if "otelcol --config" in command:
            process.wait_ready(f"http://{health}/")
        yield
        assert process.running(), process.tail()
    finally:
        process.stop()


def test_documented_commands_run_end_to_end(
    kafka_broker: Kafka, postgres_url: str, tmp_path: Path
) -> None:
    create, agent, serve = blocks("shell")
    tool = tmp_path / "kafka-topics.sh"
    tool.write_text(_TOPICS.format(jars=place()))
    tool.chmod(0o755)
    # There is one broker, which others share.
    topics = {"otlp_spans": "page.spans", "otlp_logs": "page.logs"}
    settings = {"SPANS_TOPIC": "page.spans", "LOGS_TOPIC": "page.logs", "GROUP": "page"}
    broker = {"kafka.example:9092": kafka_broker.endpoint}
    one = {"--replication-factor 3": "--replication-factor 1", "replicas=2": "replicas=1"}
    subprocess.run(
        ["bash", "-euc", replaced(create, topics | broker | one)],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
        timeout=SECONDS,
    )
    assert len(kafka_broker.end_offsets("page.spans", 24)) == 24
    grpc, http, otlp_grpc, otlp_http = free_endpoints(4)
    collect, consume = replaced(
        serve,
        {
            "/var/lib/cirron": str(tmp_path / "spool"),
            "127.0.0.1:14317": grpc,
            "127.0.0.1:14318": http,
            "\\\n": "",
            "postgresql://cirron@db.example/traces": shlex.quote(postgres_url),
        },
    ).splitlines()
    send = replaced(agent, {"/var/lib/otelcol": str(tmp_path / "agent")} | broker)
    with (
        started(collect, tmp_path),
        started(replaced(consume, broker), tmp_path, **settings),
        started(send, tmp_path, OTLP_GRPC=otlp_grpc, OTLP_HTTP=otlp_http, **settings),
    ):
        asked = urllib.request.Request(
            f"http://{otlp_http}/v1/traces", request(0), {"Content-Type": "application/x-protobuf"}
        )
        assert urllib.request.urlopen(asked, timeout=60).status == 200
        deadline = time.monotonic() + SECONDS
        while not Rows(postgres_url, SPANS).has_all():
            assert time.monotonic() < deadline, (tmp_path / "command.log").read_text()[-4000:]
            time.sleep(0.2)


def test_the_topics_allow_the_messages_of_the_agents() -> None:
    [size] = re.findall(r"max\.message\.bytes=(\d+)", PAGE)
    assert int(size) == MESSAGE_BYTES
    assert f"max_message_bytes: {size}\n" in AGENT.read_text()


@pytest.mark.backends
@pytest.mark.parametrize(("config", "number"), [(AGENT, 0), (CONSUMER, 1)])
def test_both_take_the_overlay_for_tls(config: Path, number: int, tmp_path: Path) -> None:
    overlay = tmp_path / "tls.yaml"
    overlay.write_text(blocks("yaml")[number])
    command = [binary("otelcol"), "print-config", "--config", config, "--config", overlay]
    environment = os.environ | {"DIR": str(tmp_path), "PASSWORD": "sesame"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "mechanism: SCRAM-SHA-512" in shown.stdout
    assert "ca_file: /etc/otelcol/ca.pem" in shown.stdout
