"""Each part of the chain is killed while spans are sent; each span is stored, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.kafka import Kafka

from .faults import FAULTS, chain, replay, settle

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1800)]

SPANS = 50_000
SECONDS = 300.0


def test_every_acknowledged_span_is_stored_once(
    kafka_broker: Kafka, postgres_url: str, tmp_path: Path
) -> None:
    with chain(kafka_broker, postgres_url, SPANS, tmp_path, SECONDS) as running:
        running.load.allow(0.2)
        for fault in FAULTS:
            fault(running)
        once = bytearray(b"\1" * SPANS)
        assert settle(running) == once
        assert all(collector.has_stored() for collector in running.collectors)
        assert replay(running) == once
