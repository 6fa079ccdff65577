"""The difference of two ledgers: planted differences, and noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from cirron_otel.core.run.comparison import CostChange, compare_costs
from cirron_otel.core.run.costs import MIN_UNITS, UNCOUNTED, LedgerCosts, costs_of
from cirron_otel.core.run.figures.ledger import Ledger

from .findings.ledgers import MS, USUAL, Times, job, second_from

MODERATE, MATERIAL = 0.03, 0.08
Plant = Callable[[Times], None]
FORWARD = {"forward": 100.0}
"""The usual times of a run with a single account, whose noise no other account reduces."""


def costs(ledger: Ledger) -> LedgerCosts:
    found = costs_of(ledger)
    assert found is not None
    return found


def compare(a: Ledger, b: Ledger) -> CostChange:
    return compare_costs(costs_of(a), costs_of(b), MODERATE, MATERIAL)


def plant(
    account: str, ms: float, every: int = 1, first: int = 0, last: int | None = None
) -> Plant:
    """Return a function that adds time to an account in every so many units of each rank."""

    def add(times: Times) -> None:
        if account not in times:
            times[account] = 0 * times["forward"]
        times[account][:, first:last:every] += ms

    return add


def named(found: CostChange) -> list[str]:
    return [each.account for each in found.named]


@pytest.mark.parametrize("every", [1, 10])
def test_logging_that_doubles_is_named(every: int) -> None:
    ms = 20 * every
    a = job(noise=0.1, seed=1, plant=plant("logging", ms, every))
    b = job(noise=0.1, seed=2, plant=plant("logging", 2 * ms, every))
    found = compare(a, b)
    assert (found.kind, found.severity, named(found)) == ("SLOWER", "crit", ["logging"])
    [logging] = found.named
    assert logging.per_unit_ns == 20 * MS
    assert logging.part == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_single_stall_is_a_difference_and_not_noise(ranks: int) -> None:
    a = job(ranks, 100, noise=0.1, seed=3)
    b = job(ranks, 100, noise=0.1, seed=4, plant=plant("input", 5_000, first=50, last=51))
    found = compare(a, b)
    assert (found.kind, named(found)) == ("SLOWER", ["input"])
    assert found.named[0].per_unit_ns == pytest.approx(50 * MS, rel=0.01)


def test_a_stall_of_one_rank_is_input_there_and_waiting_on_the_others() -> None:
    def stall(times: Times) -> None:
        times["input"][0, 50] += 5_000

    found = compare(job(4, 100, noise=0.1, seed=5), job(4, 100, noise=0.1, seed=6, plant=stall))
    assert (found.kind, named(found)) == ("SLOWER", ["waiting_for_ranks", "input"])


@pytest.mark.parametrize(("in_a", "in_b"), [(0, 2), (2, 3), (1, 2)])
def test_the_number_of_evaluations_is_not_noise(in_a: int, in_b: int) -> None:
    def evaluated(times: int) -> Plant:
        return plant("evaluation", 3_000, 30, 20, 20 + 30 * times)

    a = job(noise=0.1, seed=7, plant=evaluated(in_a) if in_a else None)
    found = compare(a, job(noise=0.1, seed=8, plant=evaluated(in_b)))
    assert (found.kind, named(found)) == ("SLOWER", ["evaluation"])
    assert found.named[0].per_unit_ns == (in_b - in_a) * 30 * MS


def test_evaluations_of_different_durations_are_noise() -> None:
    def evaluated(*durations: float) -> Plant:
        def add(times: Times) -> None:
            times["evaluation"] = 0 * times["forward"]
            times["evaluation"][0, 10::20] = durations

        return add

    a = job(plant=evaluated(2_000, 1_000, 3_000, 2_500, 900))
    b = job(plant=evaluated(1_100, 3_000, 2_400, 3_000, 1_500))
    found = compare(a, b)
    assert found.change is not None
    assert found.change > MATERIAL
    assert (found.kind, named(found)) == ("INCONCLUSIVE", [])


def test_slower_input_is_named_also_per_unit() -> None:
    slower = plant("input", 30)
    a = job(units=100, noise=0.1, seed=9)
    for units in (100, 300):
        found = compare(a, job(units=units, noise=0.1, seed=10, plant=slower))
        assert (found.kind, named(found)) == ("SLOWER", ["input"])
        assert found.named[0].per_unit_ns == pytest.approx(30 * MS, rel=0.02)
    assert compare(a, job(units=300, noise=0.1, seed=11)).kind == "INCONCLUSIVE"


def test_the_faster_run_of_the_same_two() -> None:
    a, b = job(noise=0.1, seed=12), job(noise=0.1, seed=13, plant=plant("logging", 30))
    found = compare(b, a)
    assert (found.kind, found.severity, named(found)) == ("FASTER", "info", ["logging"])
    assert found.named[0].part is not None
    assert found.named[0].part > 0


@pytest.mark.parametrize(
    ("ranks", "units", "usual"), [(1, 100, USUAL), (4, 60, USUAL), (1, 40, FORWARD)]
)
def test_noise_alone_is_inconclusive(ranks: int, units: int, usual: Mapping[str, float]) -> None:
    for seed in range(20):
        a = job(ranks, units, noise=0.2, seed=2 * seed, usual=usual)
        b = job(ranks, units, noise=0.2, seed=2 * seed + 1, usual=usual)
        found = compare(a, b)
        assert (found.kind, named(found)) == ("INCONCLUSIVE", []), seed


@pytest.mark.parametrize(
    ("more_ms", "kind", "severity"),
    [(2.9, "SAME", "info"), (3.1, "SLOWER", "warn"), (7.9, "SLOWER", "warn"),
     (8.1, "SLOWER", "crit"), (-2.9, "SAME", "info"), (-3.1, "FASTER", "info"),
     (-8.1, "FASTER", "info"), (0, "SAME", "info")],
)  # fmt: skip
def test_thresholds(more_ms: float, kind: str, severity: str) -> None:
    a = job(usual=FORWARD)
    found = compare(a, job(usual={"forward": 100 + more_ms}))
    assert (found.kind, found.severity) == (kind, severity)
    assert found.change == pytest.approx(more_ms / 100)
    assert found.noise == 0
    assert found.is_failure == (kind == "SLOWER")


def test_a_difference_within_the_noise_of_the_units_is_inconclusive() -> None:
    def shaken(ms: float) -> Plant:
        def add(times: Times) -> None:
            for unit in range(times["forward"].shape[1]):
                times["forward"][:, unit] += ms if (unit // 10) % 2 else -ms

        return add

    found = [
        compare(job(usual=FORWARD, plant=shaken(ms)), job(usual={"forward": 110}, plant=shaken(ms)))
        for ms in (0, 1, 10)
    ]
    assert [each.kind for each in found] == ["SLOWER", "SLOWER", "INCONCLUSIVE"]
    assert found[2].noise is not None
    assert found[2].noise > 0.1


def test_changes_that_cancel_each_other_are_named() -> None:
    a = job(noise=0.1, seed=14, plant=plant("logging", 30))
    found = compare(a, job(noise=0.1, seed=15, plant=plant("input", 30)))
    assert found.kind == "INCONCLUSIVE"
    assert sorted(named(found)) == ["input", "logging"]


def test_an_account_within_the_noise_of_the_wall_time_is_not_named() -> None:
    shaken = job(units=100, noise=0.2, seed=18, usual={"forward": 100, "loss": 0.01})
    lane = shaken.lanes[0]
    lane.accounts["forward"][::20] += 900 * MS
    found = compare(shaken, job(units=100, usual={"forward": 130, "loss": 7}))
    assert found.noise is not None
    assert (found.kind, named(found)) == ("INCONCLUSIVE", [])
    assert found.noise > 0.07


def test_start_up_and_idle_time_are_not_part_of_the_wall_time() -> None:
    outside = {"start_up": 60_000, "shut_down": 9_000, "paused": 20_000, "idle": 5_000}
    found = compare(job(), job(outside_ms=outside))
    assert (found.kind, found.change) == ("SAME", 0)
    assert {each.account for each in found.accounts if not each.is_counted} == set(outside)
    assert all(each.part is None for each in found.accounts if not each.is_counted)
    assert set(outside) < UNCOUNTED


def test_accounts_add_up_to_the_difference() -> None:
    a, b = job(2, 50, noise=0.2, seed=16), job(3, 70, noise=0.2, seed=17, plant=plant("loss", 9))
    found, (before, after) = compare(a, b), (costs(a), costs(b))
    counted = [each for each in found.accounts if each.is_counted]
    assert sum(each.per_unit_ns for each in counted) == pytest.approx(
        after.per_unit - before.per_unit
    )
    assert sum(each.part or 0 for each in counted) == pytest.approx(1)
    assert sum(before.totals.values()) == a.total_ns


def test_too_few_units_have_no_noise() -> None:
    for units, kind in ((MIN_UNITS - 1, "INCONCLUSIVE"), (MIN_UNITS, "SLOWER")):
        found = compare(job(units=units), job(units=units, plant=plant("logging", 90)))
        assert found.kind == kind
        assert found.change is not None
        assert (found.noise is None) == (units < MIN_UNITS)
        assert named(found) == (["logging"] if kind == "SLOWER" else [])
    nothing = compare_costs(costs_of(job()), costs_of(None), MODERATE, MATERIAL)
    assert (nothing.kind, nothing.change, nothing.accounts) == ("INCONCLUSIVE", None, [])


def test_units_that_are_repeated_do_not_count() -> None:
    ledger = job(units=40)
    lane = ledger.lanes[0]
    is_lost = lane.number < 10
    accounts = {name: each * ~is_lost for name, each in lane.accounts.items()}
    accounts["lost"] = (sum(lane.accounts.values()) * is_lost).astype("int64")
    lane = replace(lane, is_lost=is_lost, accounts=accounts)
    found = costs(replace(ledger, lanes=[lane]))
    assert (found.units, found.fewest) == (30, 30)
    assert found.wall_ns == ledger.total_ns
    assert found.noise == 0


def test_sums_of_many_units_have_the_same_figures() -> None:
    ledger = job(units=200, usual=FORWARD)
    lane = ledger.lanes[0]
    accounts = {name: each.reshape(-1, 2).sum(1) for name, each in lane.accounts.items()}
    joined = replace(
        lane, size=2, ns=lane.ns.reshape(-1, 2).sum(1), number=lane.number[::2],
        start=lane.start[::2], accounts=accounts,
    )  # fmt: skip
    found, expected = costs(replace(ledger, lanes=[joined])), costs(ledger)
    assert (found.units, found.median, found.noise) == (200, expected.median, expected.noise)
    assert found.per_unit == expected.per_unit


def test_trainings_of_other_unit_times_are_not_noise() -> None:
    def faster(times: Times) -> None:
        for each in times.values():
            each[:, 60:] /= 5

    def slower(times: Times) -> None:
        faster(times)
        times["input"] += 4

    a = second_from(job(noise=0.01, plant=faster), 60)
    found = compare(a, second_from(job(noise=0.01, plant=faster), 60))
    assert (found.kind, found.change) == ("SAME", 0)
    found = compare(a, second_from(job(noise=0.01, seed=1, plant=slower), 60))
    assert (found.kind, named(found)) == ("SLOWER", ["input"])


def test_runs_are_the_same_only_if_the_noise_is_small() -> None:
    """The difference and twice the noise are below the moderate change."""
    for noise, kind in ((0.0, "SAME"), (0.02, "SAME"), (0.05, "INCONCLUSIVE")):
        found = compare(job(units=60, noise=noise, seed=3), job(units=60, noise=noise, seed=4))
        assert found.kind == kind
        assert found.cause is None


def at_speed(factor: float, units: int = 100, **factors: float) -> Ledger:
    """Return a job of units of about 10 ms, whose accounts take `factor` times as long.

    Some take another factor.
    """
    usual = {name: ms / 10 * factors.get(name, factor) for name, ms in USUAL.items()}
    return job(units=units, usual=usual)


@pytest.mark.parametrize("factor", [1.1, 0.9])
def test_the_speed_of_the_machine_is_noise_in_a_short_run(factor: float) -> None:
    found = compare(at_speed(1), at_speed(factor))
    assert (found.kind, found.noise, named(found)) == ("INCONCLUSIVE", 0.12, [])
    assert not found.is_slower_by(0.05)


def test_the_speed_of_the_machine_is_less_noise_in_a_long_run() -> None:
    found = compare(at_speed(1, 10_000), at_speed(1.06, 10_000))
    assert (found.kind, found.noise) == ("SLOWER", pytest.approx(0.017, abs=0.001))
    assert found.is_slower_by(0.05)


@pytest.mark.parametrize("accounts", [["backward"], ["forward", "backward"]])
def test_a_change_of_one_or_two_accounts_has_no_minimum_noise(accounts: list[str]) -> None:
    found = compare(at_speed(1), at_speed(1, **dict.fromkeys(accounts, 1.1)))
    assert (found.kind, found.noise) == ("SLOWER", 0)
    assert sorted(named(found)) == sorted(accounts)
    assert found.is_slower_by(0.05)


def test_a_large_change_of_all_accounts_is_a_difference() -> None:
    found = compare(at_speed(1), at_speed(1.3))
    assert found.kind == "SLOWER"
    assert found.is_slower_by(0.05)


@pytest.mark.parametrize("factor", [1, 1.00001, 1.001])
def test_a_small_change_of_all_accounts_is_the_same(factor: float) -> None:
    found = compare(at_speed(1), at_speed(factor))
    assert (found.kind, found.noise) == ("SAME", 0)


@pytest.mark.parametrize(("factor", "is_slower"), [(1.2, True), (1.1, False), (0.9, False)])
def test_the_minimum_noise_is_not_scaled_with_the_size_of_a_unit(
    factor: float, is_slower: bool
) -> None:
    """A unit of B is half as large, and takes more than half of the time."""
    found = compare(at_speed(1), at_speed(factor / 2))
    assert found.is_slower_by(0.05, 2) is is_slower


def test_the_speed_of_the_machine_is_judged_by_times_per_sample() -> None:
    """A unit of B is twice as large; only one account takes longer for a sample."""
    found = compare(at_speed(1), at_speed(2, backward=2 * 1.11))
    assert found.is_slower_by(0.05, 0.5)


def test_a_run_without_wall_time_is_faster() -> None:
    b = replace(costs(at_speed(1)), totals={"start_up": 1})
    assert compare_costs(costs(at_speed(1)), b, MODERATE, MATERIAL).kind == "FASTER"
