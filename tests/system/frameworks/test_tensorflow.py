"""TensorFlow: Keras on it, and eager loops; trees, results and logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import Program
from .running import check, parameters
from .workers import Workers, workers_of

FRAMEWORK = "keras_tensorflow"
MODULES = ("tests.system.frameworks.programs.on_tensorflow", "tensorflow", "keras")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with workers_of(FRAMEWORK, MODULES, "tensorflow") as both:
        yield both


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_trains_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)
