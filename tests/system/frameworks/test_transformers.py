"""The Trainer of transformers and those of TRL: trees, results and logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.program_server import ProgramServer

from . import Program
from .running import check, parameters
from .workers import Workers, both, workers_of

FRAMEWORK, TRL = "transformers_trainer", "trl_trainers"
MODULES = ("torch", "transformers", "transformers.trainer")


@pytest.fixture(scope="module")
def workers(transformers: ProgramServer) -> Workers:
    return both(transformers, FRAMEWORK)


@pytest.fixture(scope="module")
def oldest(oldest_transformers: ProgramServer) -> Workers:
    return both(oldest_transformers, FRAMEWORK)


@pytest.fixture(scope="module")
def trl() -> Iterator[Workers]:
    with workers_of(TRL, MODULES, "trl") as pair:
        yield pair


@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_trains_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


NEWER = ("accumulates_a_remainder", "resumes_between_epochs", "resumes_without_skipping")
"""Programs that the oldest version runs otherwise: it drops the remainder of an accumulation, and
saves twice at the end of a training that saves after each epoch."""
COSTLY = ("compiles_to_machine_code",)
"""A program that takes long, and whose part in transformers is the same as that of `compiles`."""


@pytest.mark.xdist_group("transformers-oldest")
@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [p for p in parameters(FRAMEWORK) if p.id not in (*NEWER, *COSTLY)]
)
def test_the_oldest_version_gives_the_same_trees(
    program: Program, oldest: Workers, tmp_path: Path
) -> None:
    check(program, *oldest, tmp_path)


@pytest.mark.xdist_group("trl")
@pytest.mark.slow
@pytest.mark.parametrize("program", parameters(TRL))
def test_the_trainers_of_trl_are_trainers(program: Program, trl: Workers, tmp_path: Path) -> None:
    check(program, *trl, tmp_path)
