"""No nanosecond is claimed twice, whatever the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cirron_otel.core.run.accounts import ACCOUNTS
from cirron_otel.core.run.figures.ledger import Lane, Ledger, by_training
from cirron_otel.core.run.findings.claims import Bid, Claims
from cirron_otel.core.run.findings.conclude import conclude, not_assessed
from cirron_otel.core.run.findings.facts import Facts
from tests.kit.ledger_identities import assert_affordable

from .ledgers import START_NS, Times, job, trainings_of

_OUTSIDE = ("start_up", "shut_down", "idle", "ended", "paused", "evaluation", "checkpoint")


def _random_ledger(generator: np.random.Generator) -> Ledger:
    """Return a ledger without structure: any account may be large in any unit."""
    ranks = int(generator.integers(1, 6))
    lanes, most = [], 0
    for rank in range(ranks):
        count = int(generator.integers(0, 60))
        names = generator.choice(ACCOUNTS, int(generator.integers(1, len(ACCOUNTS))), replace=False)
        accounts = {
            str(name): np.rint(
                10 ** generator.uniform(0, 9, count) * (generator.random(count) < 0.7)
            ).astype(np.int64)
            for name in names
        }
        cycles = sum(accounts.values(), np.zeros(count, np.int64))
        ends = START_NS + np.cumsum(cycles)
        outside = {
            name: int(generator.integers(0, 10**9)) for name in _OUTSIDE if generator.random() < 0.3
        }
        most = max(most, int(cycles.sum()) + sum(outside.values()))
        device = (cycles * generator.random(count) * 1.2).astype(np.int64)
        lanes.append(
            Lane(
                rank if ranks > 1 else None, None, ends - cycles, cycles,
                np.sort(generator.integers(0, 80, count)),
                np.sort(generator.integers(-1, 4, count)),
                accounts, cycles // 2, np.where(generator.random(count) < 0.2, -1, cycles // 3),
                device=device if generator.random() < 0.5 else None, outside=outside,
                parts={(name, f"own_{name}"): int(each.sum()) for name, each in accounts.items()},
            )
        )  # fmt: skip
    for lane in lanes:
        used = sum(int(each.sum()) for each in lane.accounts.values()) + sum(lane.outside.values())
        lane.outside["ended"] = lane.outside.get("ended", 0) + most - used
    return Ledger(START_NS, START_NS + most, lanes, ["0", "1", "2", "3"])


@pytest.mark.parametrize("seed", range(150))
def test_costs_of_random_ledgers_are_at_most_the_total(seed: int) -> None:
    ledger = _random_ledger(np.random.default_rng(seed))
    facts = Facts(ledger, state="running" if seed % 2 else "ended")
    assert_affordable(conclude(facts), ledger.total_ns)
    assert all(set(each) == {"kind", "reason", "remedy"} for each in not_assessed(facts))


@pytest.mark.parametrize("seed", range(30))
def test_bids_never_exceed_what_is_left(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ledger = _random_ledger(generator)
    claims = Claims(ledger)
    left = {(lane, name): each.copy() for lane, of in enumerate(ledger.lanes)
            for name, each in of.accounts.items()}  # fmt: skip
    for _ in range(40):
        bid = claims.bid()
        expected = {key: each.copy() for key, each in left.items()}
        for lane, name in list(left)[:: int(generator.integers(1, 4))]:
            amounts = generator.integers(-(10**6), 10**9, len(left[lane, name]))
            taken = bid.add(lane, name, amounts, is_host=bool(generator.random() < 0.5))
            assert (taken >= 0).all()
            assert (taken <= expected[lane, name]).all()
            expected[lane, name] -= taken
        assert bid.low_ns <= bid.total_ns * (1 + 1e-9) + 1
        if generator.random() < 0.5:
            bid.commit()
            left = expected
        assert all(np.array_equal(claims.left(*key), each) for key, each in left.items())


@pytest.mark.parametrize("seed", range(30))
def test_amounts_of_some_units_are_amounts_of_all_with_zeros(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ledger = _random_ledger(generator)
    for lane in ledger.lanes:
        trainings = generator.integers(0, 4, len(lane.ns))
        lane.training = np.sort(trainings) if generator.random() < 0.5 else trainings
    claims = Claims(ledger)
    parts, complete = claims.bid(), claims.bid()
    for _ in range(20):
        place = int(generator.integers(len(ledger.lanes)))
        lane = ledger.lanes[place]
        account = str(generator.choice(list(lane.accounts)))
        is_host = bool(generator.random() < 0.5)
        amounts = generator.integers(-(10**6), 10**9, len(lane.ns))
        for some in by_training(lane.training):
            parts.add(place, account, amounts[some], places=some, is_host=is_host)
        complete.add(place, account, amounts, is_host=is_host)
    assert parts.total_ns == complete.total_ns
    assert parts.by_account == complete.by_account
    assert parts.low_ns == pytest.approx(complete.low_ns)
    for place, lane in enumerate(ledger.lanes):
        for account in lane.accounts:
            assert np.array_equal(parts.left(place, account), complete.left(place, account))


def test_each_training_is_a_sample() -> None:
    """Lanes with other divisions are samples of their own, and a few units are no sample."""

    def plant(times: Times) -> None:
        times["forward"] += np.tile([-5, 5], 30) * np.array([[1], [2]])

    ledger = job(2, 60, plant=plant, is_synchronised=False)
    ledger.lanes[0].training = np.repeat([0, 1, 2], (25, 30, 5))
    ledger.lanes[1].training = np.repeat([0, 1, 2], (5, 30, 25))
    bid = Claims(ledger).bid()
    bid.add_all("forward")
    first, second = (lane.accounts["forward"].astype(float) for lane in ledger.lanes)
    exact = first[55:].sum() + second[:5].sum()
    samples = [first[:25], first[25:55] + second[5:35], second[35:]]
    assert bid.low_ns == pytest.approx(exact + _low(samples))


def _low(samples: Sequence[np.ndarray]) -> float:
    """Return the lower bound of the sum of samples of unrelated units."""
    scaled = [each[1:] * (len(each) / (len(each) - 1)) for each in samples]
    variance = sum(len(each) * float(each.var(ddof=1)) for each in scaled)
    total = sum(float(each.sum()) for each in scaled)
    degrees = sum(len(each) - 1 for each in scaled)
    percentile = 1.2816 + 0.8467 / degrees + 0.5709 / degrees**2 + 0.2586 / degrees**3
    return total - percentile * variance**0.5


@pytest.mark.parametrize("ranks", [1, 2])
def test_claimed_times_are_as_many_as_units_for_many_trainings(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amounts of full length for each training would be quadratic in their number."""
    counts = []

    def plant(times: Times) -> None:
        times["input"][:, 10::60] += 900
        times["forward"][:, 30::60] += 900

    add = Bid.add

    def counting(bid: Bid, *args: Any, **options: Any) -> np.ndarray:
        taken = add(bid, *args, **options)
        counts.append(len(taken))
        return taken

    monkeypatch.setattr(Bid, "add", counting)
    sizes = []
    for units in (2000, 20):
        ledger = trainings_of(job(ranks, 2000, noise=0.05, plant=plant), units)
        assert {e.kind for e in conclude(Facts(ledger))} >= {"SPIKES", "INPUT_SPIKES"}
        sizes.append(sum(counts))
        counts.clear()
    assert sizes[1] <= 2 * sizes[0]


def test_a_bid_that_is_not_committed_changes_nothing() -> None:
    ledger = job()
    claims = Claims(ledger)
    claims.bid().add_all("forward")
    assert claims.left_total("forward") == ledger.totals["forward"]


def test_findings_about_different_accounts_have_different_ids() -> None:
    def plant(times: Times) -> None:
        times["unattributed"][:, [30, 60, 95]] += 800
        times["between_units"][:, [40, 77, 101]] += 800

    found = [e for e in conclude(Facts(job(1, 120, plant=plant))) if e.kind == "SPIKES"]
    assert len({each.id for each in found}) == len(found) == 2


def test_a_rank_with_other_numbers_does_not_hide_the_others() -> None:
    def plant(times: Times) -> None:
        times["input"][:, [50]] += 3000

    ledger = job(3, 120, plant=plant)
    ledger.lanes[2].number = ledger.lanes[2].number + 1000
    assert any(each.kind == "INPUT_SPIKES" for each in conclude(Facts(ledger)))


def test_ledgers_are_not_changed() -> None:
    ledger = job(2, plant=lambda times: times["input"].__iadd__(80))
    totals = dict(ledger.totals)
    conclude(Facts(ledger))
    assert dict(ledger.totals) == totals


def test_time_while_the_device_works_is_not_claimed_for_the_host() -> None:
    ledger = job(plant=lambda times: times["input"].__iadd__(100))
    cycle = sum(ledger.lanes[0].accounts.values(), np.zeros(100, np.int64))
    ledger.lanes[0].device = cycle - cycle // 20
    claims = Claims(ledger)
    bid = claims.bid()
    bid.add_all("input", is_host=True)
    bid.add_all("between_units", is_host=True)
    assert 0.99 * 0.05 < bid.total_ns / cycle.sum() <= 0.0501
