"""`diff` of simulated runs: the planted account and its size, and no difference of equal runs."""

from __future__ import annotations

import pytest

from .simulated import CHANGES, EQUAL, STALLING, Change, compared

SHARE = 0.05


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.name)
@pytest.mark.parametrize("seed", range(2))
def test_a_planted_change_is_named_with_its_size(change: Change, seed: int) -> None:
    outcome = compared(change, seed)
    found, cause = outcome.found, outcome.found.cause
    assert found.kind == ("FASTER" if change.is_removed else "SLOWER")
    assert cause is not None
    assert cause.account == change.account
    assert cause.per_unit_ns == pytest.approx(outcome.planted_ns, rel=0.1)
    assert found.is_slower_by(SHARE) is not change.is_removed


@pytest.mark.parametrize("change", EQUAL, ids=lambda each: each.name)
@pytest.mark.parametrize("seed", range(5))
def test_equal_runs_do_not_differ(change: Change, seed: int) -> None:
    found = compared(change, seed).found
    assert found.kind in ("SAME", "INCONCLUSIVE")
    assert found.cause is None
    assert not found.is_slower_by(SHARE)


def test_independent_stalls_of_equal_runs_are_noise() -> None:
    found = [compared(STALLING, seed).found for seed in range(40)]
    assert sum(each.kind not in ("SAME", "INCONCLUSIVE") for each in found) <= 3
