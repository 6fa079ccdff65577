"""Keras 3 on torch: trees, results and logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import Program, programs_of
from .running import check, parameters
from .workers import Workers, workers_of

FRAMEWORK = "keras_torch"
MODULES = ("tests.system.frameworks.programs.on_torch", "torch", "keras")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with workers_of(FRAMEWORK, MODULES) as both:
        yield both


OLDEST = ("fits", "validates_after_each_epoch", "saves_and_loads_weights", "fails_in_a_batch")


@pytest.fixture(scope="module")
def oldest() -> Iterator[Workers]:
    with workers_of(FRAMEWORK, MODULES, "keras-oldest") as both:
        yield both


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_trains_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


@pytest.mark.parametrize("name", OLDEST)
def test_the_oldest_version(name: str, oldest: Workers, tmp_path: Path) -> None:
    check(programs_of(FRAMEWORK)[name], *oldest, tmp_path)
