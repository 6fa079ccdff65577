"""Lightning: trees, results and logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError
from tests.frameworks import Program
from tests.frameworks.environments import ENVIRONMENTS
from tests.frameworks.programs.lightning_trainer import OLDEST
from tests.frameworks.running import Worker, check, parameters

FRAMEWORKS = ("lightning_trainer", "lightning_fabric_loops")
MODULES = ("torch", "lightning.pytorch", "pytorch_lightning")


Workers = dict[str, tuple[Worker, Worker]]
PROGRAMS = [each for name in FRAMEWORKS for each in parameters(name)]


def start_workers(stack: ExitStack, python: Path | None = None) -> Workers:
    """Return the processes that run the programs, by the programs' module."""
    return {
        framework: (
            stack.enter_context(Worker(framework, "untraced", MODULES, python)),
            stack.enter_context(Worker(framework, "cirron-otel", MODULES, python)),
        )
        for framework in FRAMEWORKS
    }


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with ExitStack() as stack:
        yield start_workers(stack)


@pytest.fixture(scope="module")
def oldest() -> Iterator[Workers]:
    try:
        python = ENVIRONMENTS["lightning-oldest"].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    with ExitStack() as stack:
        yield start_workers(stack, python)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_trains_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers[program.framework], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_oldest_supported_version_gives_the_same(
    program: Program, oldest: Workers, tmp_path: Path
) -> None:
    expected = replace(program, **OLDEST.get(program.name, {}))
    check(expected, *oldest[program.framework], tmp_path)
