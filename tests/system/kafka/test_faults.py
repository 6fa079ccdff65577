"""Each part of the chain is killed while spans are sent; each span is stored, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.backends.kafka import Kafka
from tests.kit.backends.versitygw import versitygw

from .faults import (
    FAULTS,
    chain,
    compact,
    replay,
    settle,
)
from .members import AGENT, CONSUMER, without_long_waits

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1800)]

SPANS = 20_000
SECONDS = 300.0
BUCKET = "tables"


@pytest.fixture(params=["directory", "s3"])
def tables(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A directory or a bucket, for the columnar tables of all collectors."""
    if request.param == "directory":
        yield str(tmp_path / "tables")
        return
    with versitygw(tmp_path / "versitygw") as server:
        server.make_bucket(BUCKET)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/of/tests"


def test_every_acknowledged_span_is_stored_once(
    tables: str, kafka_broker: Kafka, postgres_url: str, tmp_path: Path
) -> None:
    with chain(
        kafka_broker, postgres_url, tables, SPANS, tmp_path, SECONDS,
        without_long_waits(AGENT), without_long_waits(CONSUMER),
    ) as running:  # fmt: skip
        running.load.allow(0.2)
        for fault in FAULTS:
            fault(running)
        once = bytearray(b"\1" * SPANS)
        for found in (settle(running), replay(running), compact(running)):
            assert len(found) >= 2
            assert found == dict.fromkeys(found, once)
        assert all(collector.has_stored() for collector in running.collectors)
