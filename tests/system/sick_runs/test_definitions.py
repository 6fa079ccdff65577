"""Planted causes meet the definition of their kind in the times that are recorded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from .case import Case
from .families import FAMILIES
from .plan import BETWEEN

SEEDS = range(3)


def periods(case: Case) -> np.ndarray:
    """The mean time of each unit with the gap ahead of it, over the ranks."""
    times, plan = case.times, case.plan
    names = [BETWEEN, *plan.order]
    lengths: np.ndarray = sum(
        (times.end[name] - times.start[name] for name in names), np.zeros((plan.ranks, plan.units))
    )
    return lengths.mean(axis=0)


def places(case: Case) -> np.ndarray:
    """The places of the units of the training with the planted cause."""
    training = case.plan.training
    if training is None:
        return np.arange(case.plan.units)
    return np.flatnonzero(training == training[np.argmax(planted_ns(case) > 0)])


def cases_of(*kinds: str) -> Iterator[Case]:
    found = [
        case
        for family in FAMILIES
        if family.kind in kinds
        for case in map(family.build, SEEDS)
        if case.expected and case.plan.device is None
    ]
    assert len(found) > 8
    yield from found


def usual(units: np.ndarray) -> tuple[float, float]:
    """The median and the deviation of the lower half, without the first units."""
    median = float(np.median(units[3:]))
    return median, (median - float(np.quantile(units[3:], 0.1))) / 1.28


def planted_ns(case: Case) -> np.ndarray:
    """The mean time that was added to each unit, over the ranks."""
    assert case.twin is not None
    added = np.zeros((case.plan.ranks, case.plan.units))
    for name, times in case.plan.ns.items():
        added += times - case.twin.ns.get(name, 0)
    return added.mean(axis=0)


def test_spikes_exceed_three_usual_units_and_the_noise() -> None:
    for case in cases_of("SPIKES", "INPUT_SPIKES"):
        of_training = places(case)
        units = periods(case)[of_training]
        median, deviation = usual(units)
        spikes = planted_ns(case)[of_training] > 1.5 * median
        assert spikes.any(), case.family
        assert (units[spikes] > max(3 * median, median + 5 * deviation)).all(), case.family
        expected = case.expected[0]
        if expected.every is not None:
            assert set(np.diff(np.flatnonzero(spikes)).tolist()) == {expected.every}
        else:
            assert [first for first, _ in expected.units or ()] == of_training[spikes].tolist()


def test_intervals_are_slow_for_eight_units_or_more() -> None:
    for case in cases_of("SLOW_INTERVAL"):
        units = periods(case)
        (first, last) = (case.expected[0].units or ())[0]
        assert last - first >= 8
        assert (units[first : last + 1] > 1.25 * usual(units)[0]).mean() >= 0.8, case.family


def test_units_that_slow_down_rise_in_every_fifth() -> None:
    for case in cases_of("SLOWING_DOWN"):
        units = periods(case)[places(case)]
        fifths = [float(np.median(part)) for part in np.array_split(units, 5)]
        assert fifths[4] > 1.2 * fifths[0], case.family
        for ahead, fifth in itertools.pairwise(fifths):
            assert fifth > 0.98 * ahead, case.family


def test_slow_first_batches_are_most_of_what_their_units_take_longer() -> None:
    for case in cases_of("SLOW_FIRST_BATCH"):
        units = periods(case)
        firsts = np.flatnonzero(np.diff(case.plan.epochs, prepend=-1))
        fetches = case.times.own["data_load"].mean(axis=0)[firsts]
        median = usual(units)[0]
        assert len(firsts) >= 2
        assert (fetches > 3 * median).all(), case.family
        assert (fetches > 0.5 * (units[firsts] - median)).all(), case.family


def lower_median_of_others(own: np.ndarray) -> np.ndarray:
    others = [np.sort(np.delete(own, rank, axis=0), axis=0) for rank in range(len(own))]
    return np.stack([each[(len(each) - 1) // 2] for each in others])


@pytest.mark.parametrize("is_slow", [True, False])
def test_exactly_the_slow_ranks_exceed_the_others(is_slow: bool) -> None:
    for case in cases_of("INPUT_STRAGGLER", "COMPUTE_STRAGGLER", "WAIT_STRAGGLER", "STRAGGLER"):
        expected, plan = case.expected[0], case.plan
        if expected.ranks is None or expected.units is not None:
            continue
        waits = () if case.has_ddp_times else plan.synchronised
        names = [BETWEEN, *(name for name in plan.order if name not in waits)]
        units = places(case)
        own = np.sum([case.times.own[name][:, units] for name in names], axis=0)
        excess = np.median(own - lower_median_of_others(own), axis=1)
        deviations = (np.median(own, axis=1) - np.quantile(own, 0.1, axis=1)) / 1.28
        usual_ns = np.median(periods(case)[units])
        least = np.maximum(0.02 * usual_ns, 3 * deviations / np.sqrt(len(units)))
        found = {int(rank) for rank in np.flatnonzero(excess > least)}
        if is_slow:
            assert found >= set(expected.ranks), case.family
        else:
            assert found <= set(expected.ranks), case.family
