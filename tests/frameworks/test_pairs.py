"""Two frameworks in one program, or a framework and a hand-written loop: the higher one owns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks import Program
from tests.frameworks.running import Worker, check, parameters

FRAMEWORK = "pairs"
MODULES = ("torch", "transformers", "transformers.trainer")


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
