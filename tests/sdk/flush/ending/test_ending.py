"""Programs that end in many ways: each record is sealed or recovered once, or counted as lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from .plan import (
    WAYS,
    problems,
    run,
    smaller,
    spec_of,
)

SEEDS = range(24)


def test_the_seeds_include_every_kind_of_end() -> None:
    assert {spec_of(seed).end for seed in range(200)} == set(WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_record_is_sealed_recovered_or_counted(tmp_path: Path, seed: int) -> None:
    outcome = run(smaller(spec_of(seed)), tmp_path)
    assert problems(outcome, tmp_path) == [], outcome
