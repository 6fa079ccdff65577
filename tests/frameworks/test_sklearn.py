"""scikit-learn, XGBoost and LightGBM: trees, results and scores of wrapped estimators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError
from tests.frameworks import Program
from tests.frameworks.environments import ENVIRONMENTS
from tests.frameworks.running import Worker, check, parameters

FRAMEWORK = "sklearn"
MODULES = ("sklearn.linear_model", "sklearn.ensemble", "xgboost", "lightgbm")

Workers = tuple[Worker, Worker]


def python_of(name: str) -> Path:
    """Return the interpreter of an environment."""
    try:
        return ENVIRONMENTS[name].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))


@pytest.fixture(scope="module", params=["sklearn", "sklearn-oldest"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    python = python_of(request.param)
    with (
        Worker(FRAMEWORK, "untraced", MODULES, python) as untraced,
        Worker(FRAMEWORK, "cirron-otel", MODULES, python) as traced,
    ):
        yield untraced, traced


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_computes_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


def test_nothing_is_hooked_before_an_estimator_is_wrapped(tmp_path: Path) -> None:
    text = """
import sys
import cirron_otel as ci
profiler = ci.profile(output_dir=sys.argv[1], exporters="none")
print(profiler.installed_hooks)
ci.wrap(object())
print(profiler.installed_hooks)
"""
    command = [sys.executable, "-c", text, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["[]", "['sklearn']"]
