"""`generate` of transformers: trees, attributes, results and random states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError
from tests.frameworks import Program
from tests.frameworks.environments import ENVIRONMENTS
from tests.frameworks.running import Worker, check, parameters

FRAMEWORK = "generation"
MODULES = (
    "torch", "torch._dynamo", "accelerate", "transformers", "transformers.generation.utils",
    "transformers.trainer", "transformers.pipelines", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.t5.modeling_t5",
)  # fmt: skip


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker]]:
    with (
        Worker(FRAMEWORK, "untraced", MODULES) as untraced,
        Worker(FRAMEWORK, "cirron-otel", MODULES) as traced,
    ):
        yield untraced, traced


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_generates_the_same_and_gives_its_tree(
    program: Program, workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


@pytest.fixture(scope="module")
def oldest() -> Iterator[tuple[Worker, Worker]]:
    """Workers with transformers 4.48, the oldest supported version."""
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
