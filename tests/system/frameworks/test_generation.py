"""`generate` of transformers: trees, attributes, results and random states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.program_server import ProgramServer

from . import Program
from .running import check, parameters
from .workers import Workers, both

FRAMEWORK = "generation"


@pytest.fixture(scope="module")
def workers(transformers: ProgramServer) -> Workers:
    return both(transformers, FRAMEWORK)


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_generates_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


@pytest.fixture(scope="module")
def oldest(oldest_transformers: ProgramServer) -> Workers:
    return both(oldest_transformers, FRAMEWORK)


@pytest.mark.xdist_group("transformers-oldest")
@pytest.mark.slow
@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_gives_its_tree_with_the_oldest_version(
    program: Program, oldest: Workers, tmp_path: Path
) -> None:
    check(program, *oldest, tmp_path)
