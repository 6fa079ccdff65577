"""The hooks into Keras and TensorFlow when something breaks, and the traces they must not leave."""

from __future__ import annotations

import pytest

from tests.kit.forked_scripts import ForkedScripts

from .forked_checks import faults_of, names_of
from .workers import python_of

CHECKS = names_of("keras_checks")
ON_TORCH = names_of("keras_checks", "check_on_torch")


@pytest.fixture(scope="module")
def on_torch(
    scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """The faults that each check found; they run in one process, which imports Keras once."""
    return faults_of("keras_checks", tmp_path_factory.mktemp("torch"), "torch", python=scripts)


@pytest.fixture(scope="module")
def on_tensorflow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    directory, python = tmp_path_factory.mktemp("tensorflow"), python_of("tensorflow")
    return faults_of("keras_checks", directory, "tensorflow", python=python)


@pytest.mark.parametrize("name", [*CHECKS, *ON_TORCH])
def test_hooks_on_torch_never_disturb_a_run(name: str, on_torch: dict[str, list[str]]) -> None:
    assert on_torch[name] == []


@pytest.mark.parametrize("name", CHECKS)
def test_hooks_on_tensorflow_never_disturb_a_run(
    name: str, on_tensorflow: dict[str, list[str]]
) -> None:
    assert on_tensorflow[name] == []
