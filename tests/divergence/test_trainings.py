"""Real trainings of 30 steps with planted faults: each is named with its step and tensor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dgrr.traces import command
from tests.divergence.test_diff import diff
from tests.sdk.processes import environment

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
_PROGRAMS = "tests.divergence.programs"


def start(name: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"{_PROGRAMS}.{name}", *map(str, arguments)], cwd=ROOT,
        env=environment(OMP_NUM_THREADS="1", **variables), text=True, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    _, problems = process.communicate(timeout=300)
    assert process.returncode == 0, problems
    assert "Traceback" not in problems


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spools of all trainings in one process, by the names of their faults."""
    folder = tmp_path_factory.mktemp("trainings")
    finish(start("training", folder))
    return folder


def test_two_runs_of_a_program_are_equal(runs: Path) -> None:
    _, document = diff(runs / "none", runs / "again")
    assert document["divergence"] is None
    assert document["digests"]["identical"] is True
    assert document["digests"]["compared"] == 30


@pytest.mark.parametrize(
    ("fault", "step", "quantity", "tensor"),
    [
        ("seed", 0, "rng", "torch"),
        ("weight", 5, "weights", "0.weight"),
        ("sample", 13, "batch", "0"),
        ("order", 22, "batch", "0"),
        ("draw", 17, "rng", "torch"),
        ("python", 17, "rng", "python"),
        ("dropout", 8, "loss", None),
        ("rate", 19, "weights", "0.weight"),
        ("gradient", 27, "grads", "3.bias"),
        ("buffer", 11, "weights", "1.running_mean"),
        ("state", 23, "optimizer", "0.weight.momentum_buffer"),
    ],
)
def test_a_planted_fault_is_named(
    runs: Path, fault: str, step: int, quantity: str, tensor: str | None
) -> None:
    code, document = diff(runs / "none", runs / fault)
    found = document["divergence"]
    del found["ulp"]
    assert code == 0
    assert found == {
        "rank": 0, "step": step, "epoch": step // 10, "index": step % 10, "quantity": quantity,
        "tensor": tensor,
    }  # fmt: skip


def test_the_distances_of_single_bits(runs: Path) -> None:
    ulps = {
        name: diff(runs / "none", runs / name)[1]["divergence"]["ulp"]
        for name in ("sample", "state", "rate", "seed")
    }
    # One element of the sample differs, and is not recorded: both runs have kept that step.
    assert ulps["sample"] == 1
    assert ulps["state"] == 1
    assert ulps["rate"] > 1
    assert ulps["seed"] is None


def test_a_resumed_run(runs: Path) -> None:
    _, document = diff(runs / "saved", runs / "resumed")
    assert document["divergence"] is None
    assert document["digests"]["ranks"][0]["compared"] == 20
    found = diff(runs / "saved", runs / "generator")[1]["divergence"]
    assert (found["step"], found["epoch"], found["index"]) == (10, 1, 0)
    assert (found["quantity"], found["tensor"]) == ("rng", "torch")


RANKS = ("ddp-none", "ddp-batch", "ddp-weight", "fsdp-none", "fsdp-again", "fsdp-batch")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spools of two ranks, by the kind of the model and the fault of rank 1."""
    folder = tmp_path_factory.mktemp("ranks")
    both = [
        start("ranks", folder, *RANKS, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
        for rank in range(2)
    ]
    for process in both:
        finish(process)
    return folder


def divergence(a: Path, b: Path) -> Any:
    return diff(a, b, "--run", "all")[1]["divergence"]


def replicas(path: Path) -> Any:
    return json.loads(command("report", path, "--run", "all", "--json")[1])["replicas"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_rank_1_alone(ranks: Path, kind: str) -> None:
    found = divergence(ranks / f"{kind}-none", ranks / f"{kind}-batch")
    assert found.pop("ulp") > 0
    # The program changes the batch after it was digested.
    assert found == {
        "rank": 1, "step": 14, "epoch": 1, "index": 4, "quantity": "loss", "tensor": None,
    }  # fmt: skip


def test_equal_ranks(ranks: Path) -> None:
    assert divergence(ranks / "fsdp-none", ranks / "fsdp-again") is None
    found = divergence(ranks / "ddp-none", ranks / "ddp-weight")
    assert (found["rank"], found["step"], found["tensor"]) == (1, 14, "weight")


def test_a_replica_whose_weights_diverge(ranks: Path) -> None:
    assert replicas(ranks / "ddp-none") == {"groups": [[0, 1]], "compared": 30, "divergences": []}
    assert replicas(ranks / "ddp-batch")["divergences"] == []
    (found,) = replicas(ranks / "ddp-weight")["divergences"]
    assert (found["step"], found["odd"], found["tensor"]) == (14, [1], "weight")
    assert found["ulp"] >= 1
    assert replicas(ranks / "fsdp-none") is None
