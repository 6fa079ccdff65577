"""`generate` of transformers: trees, attributes, results and random states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import Program
from .running import check, parameters
from .workers import Workers, workers_of

FRAMEWORK = "generation"
MODULES = (
    "torch", "torch._dynamo", "accelerate", "transformers", "transformers.generation.utils",
    "transformers.trainer", "transformers.pipelines", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.t5.modeling_t5",
)  # fmt: skip


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with workers_of(FRAMEWORK, MODULES) as both:
        yield both


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_generates_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


@pytest.fixture(scope="module")
def oldest() -> Iterator[Workers]:
    """Workers with transformers 4.48, the oldest supported version."""
    with workers_of(FRAMEWORK, MODULES, "transformers-oldest") as both:
        yield both


@pytest.mark.slow
@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_gives_its_tree_with_the_oldest_version(
    program: Program, oldest: Workers, tmp_path: Path
) -> None:
    check(program, *oldest, tmp_path)
