"""Keras 3 on torch: trees, results and logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError
from tests.frameworks import Program, programs_of
from tests.frameworks.environments import ENVIRONMENTS
from tests.frameworks.running import Worker, check, parameters

FRAMEWORK = "keras_torch"
MODULES = ("tests.frameworks.programs.on_torch", "torch", "keras")


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker]]:
    with (
        Worker(FRAMEWORK, "untraced", MODULES) as untraced,
        Worker(FRAMEWORK, "cirron-otel", MODULES) as traced,
    ):
        yield untraced, traced


OLDEST = ("fits", "validates_after_each_epoch", "saves_and_loads_weights", "fails_in_a_batch")


@pytest.fixture(scope="module")
def oldest() -> Iterator[tuple[Worker, Worker]]:
    try:
        python = ENVIRONMENTS["keras-oldest"].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    with (
        Worker(FRAMEWORK, "untraced", MODULES, python) as untraced,
        Worker(FRAMEWORK, "cirron-otel", MODULES, python) as traced,
    ):
        yield untraced, traced


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_trains_the_same_and_gives_its_tree(
    program: Program, workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


@pytest.mark.parametrize("name", OLDEST)
def test_the_oldest_version(name: str, oldest: tuple[Worker, Worker], tmp_path: Path) -> None:
    check(programs_of(FRAMEWORK)[name], *oldest, tmp_path)
