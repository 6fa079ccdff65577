"""Accelerate without a Trainer: trees, results and logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import Program
from .running import check, parameters
from .workers import Workers, workers_of

FRAMEWORK = "accelerate_loops"
MODULES = ("torch", "torch._dynamo", "accelerate", "accelerate.accelerator", "safetensors.torch")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with workers_of(FRAMEWORK, MODULES) as both:
        yield both


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_trains_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


@pytest.fixture(scope="module")
def oldest() -> Iterator[Workers]:
    """Workers with Accelerate 1.2, the oldest supported version."""
    with workers_of(FRAMEWORK, MODULES, "transformers-oldest") as both:
        yield both


@pytest.mark.slow
@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_gives_its_tree_with_the_oldest_version(
    program: Program, oldest: Workers, tmp_path: Path
) -> None:
    check(program, *oldest, tmp_path)
