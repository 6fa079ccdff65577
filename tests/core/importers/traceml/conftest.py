"""The fixtures of the tests of TraceML."""

from __future__ import annotations

import pytest

from tests.collector.service.test_disk_full import disk  # noqa: F401 - a fixture
from tests.conftest import leave_out
from tests.core.importers.stormlog.conftest import splitting  # noqa: F401 - a fixture
from tests.kit.environments import EnvironmentUnavailableError
from tests.tools.conftest import run  # noqa: F401 - a fixture

from .peers import TRACEML


@pytest.fixture(scope="session")
def peers() -> None:
    """Both releases of TraceML; the test is left out where they cannot be installed."""
    for environment in TRACEML.values():
        try:
            environment.make()
        except EnvironmentUnavailableError as error:
            leave_out(str(error))
