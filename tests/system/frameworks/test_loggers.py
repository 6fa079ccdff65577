"""Scalars that programs log to TensorBoard, wandb and mlflow: marks equal to the stored values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.sessions.spool_trees import read_spool

from . import Program
from .checking import names_in, outcomes
from .running import check, parameters
from .workers import Workers, python_of, workers_of

FRAMEWORK, CHECKS = "loggers", "logger_checks"
MODULES = (
    "torch", "torch._dynamo", "torch.utils.tensorboard", "tensorboardX", "wandb", "mlflow",
    "tensorboard.backend.event_processing.event_accumulator", "transformers.trainer", "lightning",
    "accelerate", "tests.system.frameworks.programs.on_torch", "keras",
)  # fmt: skip
TWICE = {
    "trainer_reports_to_tensorboard": ("train/loss", "train/epoch", "train/learning_rate"),
    "trainer_has_a_callback_that_logs": ("passed/loss",),
    "lightning_logs_to_tensorboard": ("epoch", "hp_metric"),
    "lightning_logs_epochs_to_tensorboard": ("epoch",),
    "keras_logs_to_mlflow_and_tensorboard": ("epoch/loss", "validation_loss", "validation_mae"),
}
"""By program: the names of values that must not be marked, because the trainer's hooks mark them
under other names, or do not mark them."""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with workers_of(FRAMEWORK, MODULES, "loggers") as both:
        yield both


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_marks_are_the_stored_values(program: Program, workers: Workers, tmp_path: Path) -> None:
    check(program, *workers, tmp_path)
    names = {mark["name"] for mark in read_spool(tmp_path / "traced").marks}
    assert not names & set(TWICE.get(program.name, ()))


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    return outcomes(CHECKS, python_of("loggers"))


@pytest.mark.parametrize("name", names_in(CHECKS))
def test_check(name: str, results: dict[str, str]) -> None:
    if results[name]:
        pytest.fail(results[name], pytrace=False)
