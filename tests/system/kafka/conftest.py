"""One broker for all tests of Kafka, and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import leave_out
from tests.core.targets.sql.conftest import postgres_server, postgres_url
from tests.kit.backends import jars
from tests.kit.backends.kafka import Kafka, kafka

__all__ = ["postgres_server", "postgres_url"]


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One broker for all tests of a worker: topics keep them apart."""
    if reason := jars.missing():
        leave_out(f"{reason}: install Java and Maven, and run `make backends`")
    with kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def kafka_broker(shared_broker: Kafka) -> Kafka:
    """The broker of the worker, started again if a test has failed while it was down."""
    if not shared_broker.is_running():
        shared_broker.start()
    return shared_broker
