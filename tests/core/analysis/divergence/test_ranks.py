"""Real trainings of two ranks: faults on one of them, replicas, shards, and stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.importers.dgrr.traces import command
from tests.kit.forked_scripts import ForkedScripts
from tests.sdk.snapshots.digests.reading import Digest, digests

from .test_diff import diff

pytestmark = pytest.mark.torch
PROGRAM = "tests.core.analysis.divergence.programs.ranks"
STEPS, AT = 30, 14
RUNS = (
    "ddp-untraced", "ddp-none", "ddp-batch", "ddp-early", "ddp-weight", "ddp-initial",
    "fsdp-untraced", "fsdp-none", "fsdp-again", "fsdp-batch", "fsdp-early", "fsdp-initial",
    "norm-none", "norm-initial", "averaged-none", "local-none", "equal-none",
    "stages-none",
)  # fmt: skip


@pytest.fixture(scope="module")
def ranks(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spools of both ranks, by the kind of the training and the fault of rank 1."""
    folder = tmp_path_factory.mktemp("ranks")
    done = scripts.module(PROGRAM, folder, *RUNS)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return folder


def compared(a: Path, b: Path) -> Any:
    return diff(a, b, "--run", "all")[1]


def replicas(path: Path) -> Any:
    return json.loads(command("report", path, "--run", "all", "--json")[1])["replicas"]


def of_rank(path: Path, rank: int) -> list[Digest]:
    return [each for each in digests(path) if each.span["rank"] == rank]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_digests_change_nothing(ranks: Path, kind: str) -> None:
    for rank in (0, 1):
        names = (f"{kind}-untraced.{rank}", f"{kind}-none.{rank}")
        assert len({(ranks / name).read_text() for name in names}) == 1
    assert (ranks / f"{kind}-none.1").read_text() != (ranks / f"{kind}-early.1").read_text()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_each_step_of_each_rank_has_digests(ranks: Path, kind: str) -> None:
    for rank in (0, 1):
        found = of_rank(ranks / f"{kind}-none", rank)
        assert sorted({each.mark.step for each in found}) == list(range(STEPS))
        assert {each.mark.failed for each in found} == {None}
        assert len(found) == 6 * STEPS


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_rank_1_alone(ranks: Path, kind: str) -> None:
    found = compared(ranks / f"{kind}-none", ranks / f"{kind}-batch")["divergence"]
    assert found.pop("ulp") > 0
    # The program changes the batch after it was digested.
    assert found == {
        "rank": 1, "step": AT, "epoch": 1, "index": 4, "quantity": "loss", "tensor": None,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_weight_of_rank_1(ranks: Path, kind: str) -> None:
    found = compared(ranks / f"{kind}-none", ranks / f"{kind}-early")["digests"]["ranks"]
    first = [(each["divergence"]["step"], each["divergence"]["quantity"]) for each in found]
    # In rank 0, the gradients that it gets from rank 1 are the first to differ.
    assert first == [(AT, "loss" if kind == "fsdp" else "grads"), (AT, "loss")]


def test_two_equal_runs(ranks: Path) -> None:
    document = compared(ranks / "fsdp-none", ranks / "fsdp-again")
    assert document["divergence"] is None
    assert document["digests"]["identical"] is True
    assert document["digests"]["compared"] == 2 * STEPS


def test_a_bit_of_a_weight_of_rank_1(ranks: Path) -> None:
    found = compared(ranks / "ddp-none", ranks / "ddp-weight")["divergence"]
    assert (found["rank"], found["step"], found["tensor"]) == (1, AT, "0.weight")


def test_replicas_have_equal_digests_and_parts_do_not(ranks: Path) -> None:
    ours, theirs = (of_rank(ranks / "ddp-none", rank) for rank in (0, 1))
    equal = {
        one.mark.quantity
        for one, other in zip(ours, theirs, strict=True)
        if one.mark.digest == other.mark.digest
    }
    assert equal == {"grads", "weights", "optimizer"}
    assert not any(each.mark.is_sharded for each in ours)
    shards = []
    for rank in (0, 1):
        found = of_rank(ranks / "fsdp-none", rank)
        sharded = {each.mark.quantity for each in found if each.mark.is_sharded}
        assert sharded == {"grads", "weights", "optimizer"}
        shards.append(next(each.tensors for each in found if each.mark.quantity == "weights"))
    part, other = shards
    assert [each.shape for each in part.values()] == [(3, 6), (3,), (1, 5), (1,)]
    assert [each.shape for each in other.values()] == [(2, 6), (2,), (0, 5), (0,)]
    assert list(part) == list(other) == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("name", ["ddp-none", "ddp-batch", "norm-none"])
def test_replicas_that_stay_equal(ranks: Path, name: str) -> None:
    assert replicas(ranks / name) == {"groups": [[0, 1]], "compared": STEPS, "divergences": []}


NO_REPLICAS = ("fsdp-none", "fsdp-initial", "equal-none", "stages-none", "local-none")


@pytest.mark.parametrize("name", NO_REPLICAS)
def test_shards_and_stages_are_not_replicas(ranks: Path, name: str) -> None:
    assert replicas(ranks / name) is None
    assert "DIVERGED" not in command("report", ranks / name, "--run", "all", "--full")[1]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ddp-early", AT), ("ddp-weight", AT), ("ddp-initial", 0), ("norm-initial", 0),
        ("averaged-none", 0),
    ],
)  # fmt: skip
def test_replicas_that_diverge(ranks: Path, name: str, step: int) -> None:
    (found,) = replicas(ranks / name)["divergences"]
    assert found.pop("ulp") >= 1
    assert found == {
        "rank": 1, "step": step, "epoch": step // 10, "index": step % 10, "quantity": "weights",
        "tensor": "0.weight", "ranks": [0, 1], "odd": [1],
    }  # fmt: skip
    text = " ".join(command("report", ranks / name, "--run", "all", "--full")[1].split())
    assert f"the weights of rank 1 differ from those of rank 0 from step {step}" in text
    assert ("began with other weights" in text) == (step == 0)
