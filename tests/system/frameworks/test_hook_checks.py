"""The hooks into Accelerate and `generate` under faults, forks and other frameworks."""

from __future__ import annotations

import pytest

from tests.kit.forked_scripts import ForkedScripts

from .checking import names_in, outcomes

CHECKS = "hook_checks"


@pytest.fixture(scope="module")
def results(scripts: ForkedScripts) -> dict[str, str]:
    return outcomes(CHECKS, scripts)


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_check(name: str, results: dict[str, str]) -> None:
    if results[name]:
        pytest.fail(results[name], pytrace=False)
