"""No nanosecond is claimed twice, whatever the ledger."""

from __future__ import annotations

import numpy as np
import pytest

from cirron_otel.core.run.accounts import ACCOUNTS
from cirron_otel.core.run.figures.ledger import Lane, Ledger
from cirron_otel.core.run.findings.claims import Claims
from cirron_otel.core.run.findings.conclude import conclude, not_assessed
from cirron_otel.core.run.findings.facts import Facts
from tests.kit.ledger_identities import assert_affordable

from .ledgers import START_NS, Times, job

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
