"""Lightning: trees, results and logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.program_server import ProgramServer

from . import Program
from .programs.lightning_trainer import OLDEST
from .running import check, parameters
from .workers import Workers, both, server_of

FRAMEWORKS = ("lightning_trainer", "lightning_fabric_loops")
MODULES = ("torch", "lightning.pytorch", "pytorch_lightning")


Pairs = dict[str, Workers]
"""The workers by the programs' module."""
PROGRAMS = [each for name in FRAMEWORKS for each in parameters(name)]


def _pairs(server: ProgramServer) -> Pairs:
    return {framework: both(server, framework) for framework in FRAMEWORKS}


@pytest.fixture(scope="module")
def workers() -> Iterator[Pairs]:
    with server_of(MODULES) as server:
        yield _pairs(server)


@pytest.fixture(scope="module")
def oldest() -> Iterator[Pairs]:
    """The programs with the oldest version, which imports torch's compiler for every training."""
    with server_of((*MODULES, "torch._dynamo"), "lightning-oldest") as server:
        yield _pairs(server)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_trains_the_same_and_gives_its_tree(
    program: Program, workers: Pairs, tmp_path: Path
) -> None:
    check(program, *workers[program.framework], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_oldest_supported_version_gives_the_same(
    program: Program, oldest: Pairs, tmp_path: Path
) -> None:
    expected = replace(program, **OLDEST.get(program.name, {}))
    check(expected, *oldest[program.framework], tmp_path)
