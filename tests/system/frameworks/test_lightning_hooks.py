"""The hooks into Lightning when something breaks, and the traces that they must not leave."""

from __future__ import annotations

import pytest

from tests.kit.forked_scripts import ForkedScripts

from .forked_checks import faults_of, names_of

CHECKS = names_of("lightning_checks")


@pytest.fixture(scope="module")
def faults(
    scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The faults that each check found; they run in one process, which imports Lightning once."""
    return faults_of("lightning_checks", tmp_path_factory.mktemp("checks"), python=scripts)


@pytest.mark.parametrize("name", CHECKS)
def test_hooks_never_disturb_a_run(name: str, faults: dict[str, list[str]]) -> None:
    assert faults[name] == []
