"""Scalars that programs log to TensorBoard, wandb and mlflow: marks equal to the stored values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError
from tests.frameworks import Program
from tests.frameworks.checking import names_in, outcomes
from tests.frameworks.environments import ENVIRONMENTS
from tests.frameworks.running import Worker, check, parameters
from tests.sdk.spool_trees import read_spool

FRAMEWORK, CHECKS = "loggers", "logger_checks"
MODULES = (
    "torch", "torch._dynamo", "torch.utils.tensorboard", "tensorboardX", "wandb", "mlflow",
    "tensorboard.backend.event_processing.event_accumulator", "transformers.trainer", "lightning",
    "accelerate", "tests.frameworks.programs.on_torch", "keras",
)  # fmt: skip
TWICE = {
    "trainer_reports_to_tensorboard": ("train/loss", "train/epoch", "train/learning_rate"),
    "trainer_has_a_callback_that_logs": ("passed/loss",),
    "lightning_logs_to_tensorboard": ("epoch",),
    "lightning_logs_epochs_to_tensorboard": ("epoch",),
    "keras_logs_to_mlflow_and_tensorboard": ("epoch/loss", "validation_loss", "validation_mae"),
}
"""By program: the names of values that must not be marked, because the trainer's hooks mark them
under other names, or do not mark them."""


def _python() -> Path:
    try:
        return ENVIRONMENTS["loggers"].make()
    except EnvironmentUnavailableError as error:
        leave_out(str(error))


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker]]:
    python = _python()
    with (
        Worker(FRAMEWORK, "untraced", MODULES, python) as untraced,
        Worker(FRAMEWORK, "cirron-otel", MODULES, python) as traced,
    ):
        yield untraced, traced


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_marks_are_the_stored_values(
    program: Program, workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)
    names = {mark["name"] for mark in read_spool(tmp_path / "traced").marks}
    assert not names & set(TWICE.get(program.name, ()))


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    return outcomes(CHECKS, _python())


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_check(name: str, results: dict[str, str]) -> None:
    if results[name]:
        pytest.fail(results[name], pytrace=False)
