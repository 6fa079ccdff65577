"""Every loop of the folder `loops` gives the tree written above it, complete and within its time.

The loops run one after the other in one process, so that each also shows that the hooks of the one
before came off; those of several ranks run in forked processes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.conftest import leave_out

from .judging import faults
from .loops import Loop, every
from .running import Worker
from .tools import (
    Ours,
    Outcome,
    run,
    run_untraced,
)
from .trees import Recorded, read

LOOPS = every()


def _parameters(ranks: bool) -> list[pytest.param]:
    return [
        pytest.param(loop, id=loop.name, marks=[pytest.mark.slow] if loop.slow else [])
        for loop in LOOPS.values()
        if (loop.ranks > 1) is ranks
    ]


def _leave_out_where_it_cannot_run(loop: Loop) -> None:
    if _version(torch.__version__) < _version(loop.since):
        pytest.skip(f"needs torch {loop.since}")
    for module in loop.needs:
        if importlib.util.find_spec(module) is None:
            leave_out(f"{module} is not installed")


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _check(loop: Loop, outcome: Outcome, recorded: Recorded) -> None:
    if wrong := faults(loop, outcome, recorded):
        pytest.fail("\n".join([loop.title, *wrong]), pytrace=False)


@pytest.mark.parametrize("loop", _parameters(ranks=False))
def test_a_loop_gives_its_tree_and_the_same_losses(loop: Loop, tmp_path: Path) -> None:
    _leave_out_where_it_cannot_run(loop)
    bare = run_untraced(loop, tmp_path)
    assert bare.error == ""
    traced = run(loop, Ours(), tmp_path)
    recorded = read(tmp_path)
    assert list(recorded) == [0]
    _check(loop, traced, recorded[0])
    assert traced.result == bare.result


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("cirron-otel") as process:
        yield process


@pytest.mark.parametrize("loop", _parameters(ranks=True))
def test_each_rank_of_a_loop_gives_its_tree(loop: Loop, tmp_path: Path, worker: Worker) -> None:
    _leave_out_where_it_cannot_run(loop)
    outcomes = worker.run_loop(loop, tmp_path)
    recorded = read(tmp_path)
    assert list(recorded) == list(range(loop.ranks))
    for rank, outcome in enumerate(outcomes):
        _check(loop, outcome, recorded[rank])
