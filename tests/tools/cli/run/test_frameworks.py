"""`cirron-otel run` of frameworks whose first record is not a phase of torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.sessions.processes import ROOT
from tests.kit.sessions.spool_trees import Node
from tests.system.frameworks.workers import python_of

from .running import others, run, spool_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}

KERAS = """
import sys
import numpy as np
import keras

model = keras.Sequential([keras.layers.Dense(2)])
model.compile(optimizer="sgd", loss="mse")
model.fit(np.zeros((8, 3)), np.zeros((8, 2)), batch_size=4, verbose=0)
assert "torch" not in sys.modules
"""
SKLEARN = """
import sys
import numpy as np
from sklearn.linear_model import LogisticRegression
import cirron_otel as ci

inputs = np.arange(20.0).reshape(10, 2)
ci.wrap(LogisticRegression()).fit(inputs, [0, 1] * 5)
assert "torch" not in sys.modules
"""
MLFLOW = """
import sys
import mlflow

mlflow.set_tracking_uri("file:./runs")
with mlflow.start_run():
    mlflow.log_metric("accuracy", 0.5)
assert "torch" not in sys.modules
"""
TENSORBOARDX = """
from tensorboardX import SummaryWriter

with SummaryWriter("logs") as writer:
    writer.add_scalar("accuracy", 0.5, 1)
"""
WANDB = """
import sys
import wandb

with wandb.init(mode="offline", settings=wandb.Settings(console="off")) as run:
    run.log({"accuracy": 0.5})
assert "torch" not in sys.modules
"""
RECORDED = {
    "tensorflow": (KERAS, ["epoch", "mark loss", *["step", "train_step"] * 2]),
    "sklearn": (SKLEARN, ["fit"]),
    "mlflow": (MLFLOW, ["mark accuracy"]),
    "tensorboardX": (TENSORBOARDX, ["mark accuracy"]),
    "wandb": (WANDB, ["mark accuracy"]),
}
"""By the imported module: a program, and the names of its scopes and marks."""
LOGGERS = ("mlflow", "tensorboardX", "wandb")


@pytest.mark.parametrize("module", RECORDED)
def test_a_program_without_torch_is_recorded(module: str, tmp_path: Path) -> None:
    program, recorded = RECORDED[module]
    python = python_of("loggers" if module in LOGGERS else module)
    variables = {"KERAS_BACKEND": "tensorflow", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = run(tmp_path, "-q", "--", python, "-c", program, env=ENVIRONMENT | variables)
    assert done.returncode == 0, done.stderr
    (session,) = others(spool_of(tmp_path))
    assert list(_names(session)) == recorded


def _names(node: Node) -> Iterator[str]:
    """The names of the scopes below a scope, each with its marks."""
    yield from (f"mark {name}" for name, _ in node.values)
    for child in node.children:
        yield child.name
        yield from _names(child)


SAVES = """
import torch
from accelerate import Accelerator
from cirron_otel.accelerate import CirronTracker

accelerator = Accelerator(cpu=True, log_with=CirronTracker())
accelerator.init_trackers("project", config={"lr": 0.25})
accelerator.prepare(torch.nn.Linear(1, 1))
accelerator.save_state("state")
"""
LOADS = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
accelerator.load_state("state")
"""


@pytest.mark.torch
def test_the_first_call_of_an_accelerator_opens_the_session(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    for program in (SAVES, LOADS):
        done = run(tmp_path, "-q", "--", sys.executable, "-c", program, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
    saved, loaded = others(spool_of(tmp_path))
    assert [each.name for each in saved.children] == ["prepare", "checkpoint"]
    assert [each.name for each in loaded.children] == ["checkpoint"]
    (link,) = loaded.record["otel"]["links"]
    assert link["span_id"] == saved.record["id"][:16]
    files = (tmp_path / ".cirron" / "spool").glob("*.json")
    assert any('"cirron.config.lr"' in each.read_text() for each in files)


LOGGER = """
from cirron_otel.lightning import CirronLogger

print(CirronLogger().version)
"""


@pytest.mark.torch
def test_the_version_of_a_logger_opens_the_session(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    done = run(tmp_path, "-q", "--", sys.executable, "-c", LOGGER, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    (session,) = others(spool_of(tmp_path))
    assert done.stdout.split()[-1] == str(session.record["id"])
