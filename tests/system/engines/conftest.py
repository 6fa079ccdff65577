"""PostgreSQL, and one Spark for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import leave_out
from tests.core.targets.sql.conftest import postgres_server, postgres_url
from tests.kit.environments import EnvironmentUnavailableError

from .spark import Cluster, cluster, missing

__all__ = ["postgres_server", "postgres_url"]


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    if reason := missing():
        leave_out(reason)
    try:
        with cluster(tmp_path_factory.mktemp("spark")) as running:
            yield running
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
