"""Digests of two ranks: replicas with equal weights, and the parts of sharded tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.processes import ROOT, environment

from .programs.replicas import AT, STEPS
from .reading import digests, first_difference, values


def _run(directory: Path, kind: str, fault: str) -> list[str]:
    """The hashes of the ranks' weights."""
    directory.mkdir(parents=True)
    subprocess.run(
        [sys.executable, "-m", "tests.digests.programs.replicas", str(directory), kind, fault],
        cwd=ROOT, check=True, timeout=300,
        env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
    )  # fmt: skip
    return [(directory / f"weights-{rank}").read_text() for rank in (0, 1)]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_ranks(kind: str, tmp_path: Path) -> None:
    weights = {name: _run(tmp_path / name, kind, name) for name in ("untraced", "none", "weight")}
    assert weights["untraced"] == weights["none"]
    for rank in (0, 1):
        found = digests(tmp_path / "none" / str(rank))
        assert sorted({each.mark.step for each in found}) == list(range(STEPS))
        assert {each.mark.failed for each in found} == {None}
        assert len(found) == 6 * STEPS
    for rank in (0, 1):
        first = first_difference(tmp_path / "none" / str(rank), tmp_path / "weight" / str(rank))
        assert first is not None
        # In rank 0, the gradients that it gets from rank 1 are the first to differ.
        expected = "loss" if rank == 1 or kind == "fsdp" else "grads"
        assert first[:2] == (AT, expected)


def test_replicas_have_equal_weights_and_parts_do_not(tmp_path: Path) -> None:
    for kind in ("ddp", "fsdp"):
        _run(tmp_path / kind, kind, "none")
    ours, theirs = (values(tmp_path / "ddp" / rank) for rank in ("0", "1"))
    equal = {quantity for (_, quantity, _), each in ours.items() if each in theirs.values()}
    assert {"grads", "weights", "optimizer"} <= equal
    assert "batch" not in equal
    part, other = (
        next(each for each in digests(tmp_path / "fsdp" / rank) if each.mark.quantity == "weights")
        for rank in ("0", "1")
    )
    assert [each.shape for each in part.tensors.values()] == [(3, 6), (3,), (1, 5), (1,)]
    assert [each.shape for each in other.tensors.values()] == [(2, 6), (2,), (0, 5), (0,)]
    assert list(part.tensors) == ["0.weight", "0.bias", "2.weight", "2.bias"]
