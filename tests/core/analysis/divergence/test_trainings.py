"""Real trainings of 30 steps with planted faults: each is named with its step and tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.forked_scripts import ForkedScripts

from .test_diff import diff

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def runs(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spools of all trainings in one process, by the names of their faults."""
    folder = tmp_path_factory.mktemp("trainings")
    done = scripts.script(Path(__file__).parent / "programs" / "training.py", folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
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
