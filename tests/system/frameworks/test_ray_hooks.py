"""The hooks into Ray in a process that starts no cluster: faults, missing parts, and removal."""

from __future__ import annotations

import pytest

from tests.conftest import leave_out
from tests.kit.environments import EnvironmentUnavailableError

from .checking import names_in, outcomes
from .environments import ENVIRONMENTS

CHECKS = "ray_checks"


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    try:
        python = ENVIRONMENTS["ray"].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    return outcomes(CHECKS, python, RAY_USAGE_STATS_ENABLED="0")


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_check(name: str, results: dict[str, str]) -> None:
    if results[name]:
        pytest.fail(results[name], pytrace=False)
