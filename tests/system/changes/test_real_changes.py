"""`diff` of real runs: the planted time is far above the noise of a busy machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from .judging import judged
from .plants import PLANTS, Plant, each, once
from .program import Wait

_TRIES = 3
_BY_NAME = {plant.name: plant for plant in PLANTS}


def _larger(name: str, wait: Wait) -> Plant:
    """Return a plant with more time at its place."""
    plant = _BY_NAME[name]
    return replace(plant, b=replace(plant.b, waits={plant.places[0]: wait}))


def _judge(plant: Plant, directory: Path, tolerance: float) -> None:
    """Judge a plant, at most `_TRIES` times: other load can hide the planted time."""
    for number in range(_TRIES):
        result = judged(plant, directory / str(number), tolerance)
        if result.is_right:
            return
    raise AssertionError(f"{result.headline}: {result.detail}")


@pytest.mark.parametrize(
    "plant",
    [
        _larger("collate", each(40)),
        _larger("logging", each(40)),
        _larger("between_steps", each(40)),
        _larger("stall_in_backward", once(70, 4000)),
        _larger("slow_evaluations", each(1500)),
    ],
    ids=lambda plant: plant.name,
)
def test_a_planted_change_of_a_real_run_is_named(plant: Plant, tmp_path: Path) -> None:
    _judge(plant, tmp_path, tolerance=0.5)


def test_accumulation_is_named(tmp_path: Path) -> None:
    plant = _BY_NAME["accumulation"]
    _judge(plant, tmp_path, tolerance=10)
