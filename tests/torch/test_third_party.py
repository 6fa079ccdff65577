"""Loops that nobody here wrote run unharmed: the same losses, the same weights, traced or not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.processes import ROOT, environment
from tests.sdk.spool_trees import read_spool
from tests.torch.third_party.program import BATCHES, EPOCHS

CASES = [
    ("hf_trainer", "--accumulate=1"),
    ("hf_trainer", "--accumulate=2"),
    ("lightning_fit", "--accumulate=2"),
    ("accelerate_loop", "--accumulate=2"),
    ("stateful_loader", "--workers=1"),
]


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.torch.third_party.{program}", *arguments],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> Any:
    """What the program printed, read as JSON: nothing else."""
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.mark.parametrize(("program", "variant"), CASES)
def test_it_trains_the_same_with_and_without(program: str, variant: str, tmp_path: Path) -> None:
    bare, traced = start(program, variant), start(program, variant, "--trace", str(tmp_path))
    expected = result(bare)
    assert result(traced) == expected
    steps = BATCHES // int(variant[-1])
    assert len(expected["losses"]) >= EPOCHS * (steps + 1)
    assert len(set(expected["losses"])) > EPOCHS * steps / 2
    spool = read_spool(tmp_path)
    assert spool.session.record["end_ns"] is not None
    assert spool.lost == []
