"""Accelerate without a Trainer: trees, results and logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError
from tests.frameworks import Program
from tests.frameworks.environments import ENVIRONMENTS
from tests.frameworks.running import Worker, check, parameters

FRAMEWORK = "accelerate_loops"
MODULES = ("torch", "torch._dynamo", "accelerate", "accelerate.accelerator", "safetensors.torch")


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker]]:
    with (
        Worker(FRAMEWORK, "untraced", MODULES) as untraced,
        Worker(FRAMEWORK, "cirron-otel", MODULES) as traced,
    ):
        yield untraced, traced


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_trains_the_same_and_gives_its_tree(
    program: Program, workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


@pytest.fixture(scope="module")
def oldest() -> Iterator[tuple[Worker, Worker]]:
    """Workers with Accelerate 1.2, the oldest supported version."""
    try:
        python = ENVIRONMENTS["transformers-oldest"].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    with (
        Worker(FRAMEWORK, "untraced", MODULES, python) as untraced,
        Worker(FRAMEWORK, "cirron-otel", MODULES, python) as traced,
    ):
        yield untraced, traced


@pytest.mark.slow
@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_gives_its_tree_with_the_oldest_version(
    program: Program, oldest: tuple[Worker, Worker], tmp_path: Path
) -> None:
    check(program, *oldest, tmp_path)
