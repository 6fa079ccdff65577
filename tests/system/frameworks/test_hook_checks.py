"""The hooks into Accelerate and `generate` under faults, forks and other frameworks."""

from __future__ import annotations

import pytest

from .checking import names_in, outcomes

CHECKS = "hook_checks"


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    return outcomes(CHECKS)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_check(name: str, results: dict[str, str]) -> None:
    if results[name]:
        pytest.fail(results[name], pytrace=False)
