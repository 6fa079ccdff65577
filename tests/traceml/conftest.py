"""The fixtures of the tests of TraceML."""

from __future__ import annotations

import pytest

from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.collector.test_disk_full import disk  # noqa: F401 - a fixture
from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError
from tests.stormlog.conftest import splitting  # noqa: F401 - a fixture
from tests.traceml.peers import TRACEML


@pytest.fixture(scope="session")
def peers() -> None:
    """Both releases of TraceML; the test is left out where they cannot be installed."""
    for environment in TRACEML.values():
        try:
            environment.make()
        except EnvironmentUnavailableError as error:
            leave_out(str(error))
