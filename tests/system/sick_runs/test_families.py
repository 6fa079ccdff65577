"""The families: enough of them, of every kind, with parameters over their complete ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from .building import _is_ordered
from .case import Case
from .families import AT_THRESHOLDS, FAMILIES
from .producers import PRODUCERS, write
from .truth import MARGIN, NOTICE, THRESHOLDS

RECORDED = {
    "INPUT_BOUND", "H2D_BOUND", "SLOW_FIRST_BATCH", "SPIKES", "INPUT_SPIKES", "SLOW_INTERVAL",
    "SLOWING_DOWN", "INPUT_STRAGGLER", "COMPUTE_STRAGGLER", "H2D_STRAGGLER", "WAIT_STRAGGLER",
    "STRAGGLER", "UNEVEN", "WAIT_HEAVY", "BETWEEN_UNITS", "OPTIMIZER_HEAVY", "LOSS_HEAVY",
    "EVALUATION_HEAVY", "CHECKPOINT_HEAVY", "LOGGING_HEAVY", "TRACING", "GARBAGE_COLLECTION",
    "COMMUNICATION_BOUND", "START_UP", "WARM_UP", "COMPILATION", "RESTARTED", "FAILED", "KILLED",
    "OUT_OF_MEMORY", "STALLED", "RANK_MISSING", "NON_FINITE", "DIVERGING", "EXPLODING_GRADIENT",
    "CREEP_CONFIRMED", "HIGH_PRESSURE", "IMBALANCE", "INCOMPLETE",
}  # fmt: skip
SEEDS = 4


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    return [family.build(seed) for family in FAMILIES for seed in range(SEEDS)]


def test_there_are_more_than_a_hundred_families_with_names_of_their_own() -> None:
    names = [each.name for each in (*FAMILIES, *AT_THRESHOLDS)]
    assert len(FAMILIES) >= 100
    assert len(set(names)) == len(names)
    assert not [name for name in names if "|" in name], "the table of the page has other columns"


def test_families_cover_every_kind_that_is_recorded() -> None:
    assert {each.kind for each in FAMILIES} - {"healthy"} == RECORDED
    assert set(THRESHOLDS) - {each.kind for each in FAMILIES} == set()


def test_there_is_a_healthy_family_of_every_producer(cases: Sequence[Case]) -> None:
    healthy = {each.name for each in FAMILIES if each.kind == "healthy"}
    assert {each.producer for each in cases if each.family in healthy} == set(PRODUCERS)


def test_parameters_cover_their_ranges(cases: Sequence[Case]) -> None:
    ranks, units = [each.plan.ranks for each in cases], [each.plan.units for each in cases]
    noise = [each.plan.noise for each in cases]
    prices = [e.price for each in cases for e in each.planted if e.price is not None]
    assert set(ranks) == {1, 2, 3, 4, 6, 8, 12, 16}
    assert min(units) <= 11
    assert max(units) > 1_500
    assert min(noise) < 0.005
    assert max(noise) <= 0.2
    assert sum(each > 0.18 for each in noise) > 20
    assert min(prices) < 0.032
    assert max(prices) > 0.55
    assert sum(price < 0.1 for price in prices) > 0.2 * len(prices)
    assert any(each.plan.skew.any() for each in cases)
    assert any(each.plan.device is not None for each in cases)
    assert {each.plan.device.wait for each in cases if each.plan.device} == {
        "end", "optimizer_step", "between",
    }  # fmt: skip


def test_a_third_of_the_sick_runs_has_two_causes(cases: Sequence[Case]) -> None:
    sick = [each for each in cases if not each.is_healthy]
    two = [each for each in sick if len(each.expected) > 1]
    assert 0.25 < len(two) / len(sick) < 0.4


def test_the_more_expensive_cause_is_expected_first(cases: Sequence[Case]) -> None:
    for case in cases:
        assert len(case.expected) <= 2
        if len(case.expected) == 2:
            first, other = case.expected
            assert _is_ordered(first, other)
            assert first.severity <= other.severity
            if first.price is not None and other.price is not None:
                assert first.price > other.price


def test_prices_near_a_threshold_are_not_scored(cases: Sequence[Case]) -> None:
    for case in cases:
        for planted in case.planted:
            warning = THRESHOLDS[planted.kinds[0]][0]
            weight = planted.weight or 0
            assert not MARGIN[0] * warning < weight < MARGIN[1] * warning, case.family


def test_planted_price_below_the_threshold_expects_no_warning(cases: Sequence[Case]) -> None:
    below = [
        each for each in cases
        if each.planted and all((e.weight or 0) < THRESHOLDS[e.kinds[0]][0] for e in each.planted)
    ]  # fmt: skip
    assert len(below) > 10
    for case in below:
        assert all(e.price is None or e.kinds == (NOTICE,) for e in case.expected)


def test_equal_seeds_give_equal_files() -> None:
    for family in FAMILIES[::10]:
        assert write(family.build(0)) == write(family.build(0))
        assert write(family.build(0)) != write(family.build(1))


def test_sick_families_are_sick_and_healthy_families_are_healthy(cases: Sequence[Case]) -> None:
    sick = Counter(each.family for each in cases if not each.is_healthy)
    for family in FAMILIES:
        if family.kind == "healthy":
            assert not sick[family.name], family.name
        else:
            assert sick[family.name], family.name
