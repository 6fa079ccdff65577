"""Ranks that the others wait for: kind, phase, ranks, units, price."""

from __future__ import annotations

import numpy as np
import pytest

from cirron_otel.core.run.findings.conclude import conclude
from cirron_otel.core.run.findings.facts import Facts
from cirron_otel.core.run.findings.rank_work import lower_median_of_others

from .ledgers import Times, job, price_ns, trainings_of

_KINDS = {
    "input": ("INPUT_STRAGGLER", "data_load"), "transfer": ("H2D_STRAGGLER", "h2d"),
    "forward": ("COMPUTE_STRAGGLER", "forward"), "loss": ("COMPUTE_STRAGGLER", "loss"),
    "optimizer": ("COMPUTE_STRAGGLER", "optimizer_step"),
    "unattributed": ("WAIT_STRAGGLER", None), "between_units": ("WAIT_STRAGGLER", None),
}  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("account", _KINDS)
def test_a_persistent_straggler(account: str, ranks: int) -> None:
    def plant(times: Times) -> None:
        times[account][1] += 60

    ledger = job(ranks, 100, plant=plant, noise=0.05)
    finding = conclude(Facts(ledger))[0]
    assert (finding.kind, finding.phase) == _KINDS[account]
    assert finding.ranks == [1]
    assert finding.hosts == ["host0"]
    assert finding.steps == []
    assert not finding.moving
    assert finding.cost_ns == pytest.approx(price_ns(ranks, 100, plant, noise=0.05), rel=0.1)
    assert finding.cost_ns == pytest.approx(60e6 * 100 * ranks, rel=0.15)
    assert "Rank 1 is slow" in finding.sentence


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("units", [1600, 800, 16, 10])
def test_a_straggler_of_many_trainings_has_the_price_of_all(units: int, ranks: int) -> None:
    def plant(times: Times) -> None:
        times["input"][1] += 60

    finding = conclude(Facts(trainings_of(job(ranks, 1600, plant=plant, noise=0.05), units)))[0]
    assert (finding.kind, finding.ranks) == ("INPUT_STRAGGLER", [1])
    assert finding.cost_ns == pytest.approx(price_ns(ranks, 1600, plant, noise=0.05), rel=0.1)


def test_two_ranks_are_compared_with_each_other_and_not_with_their_mean() -> None:
    def plant(times: Times) -> None:
        times["input"][1] += 81

    ledger = job(2, 100, plant=plant)
    finding = conclude(Facts(ledger))[0]
    assert finding.evidence["excess_ns"] == {"1": 81_000_000}
    assert finding.sentence == (
        "Rank 1 is slow in data_load: each 176 ms step takes 81 ms longer because of it, 46 % of"
        " the time."
    )
    assert finding.cost_ns == pytest.approx(81e6 * 200, rel=0.01)


def test_slow_ranks_with_one_cause_are_one_finding() -> None:
    def plant(times: Times) -> None:
        times["forward"][[3, 5]] += 50

    finding = conclude(Facts(job(8, 100, plant=plant, noise=0.05)))[0]
    assert (finding.kind, finding.ranks) == ("COMPUTE_STRAGGLER", [3, 5])
    assert finding.cost_ns == pytest.approx(price_ns(8, 100, plant, noise=0.05), rel=0.1)


def test_slow_ranks_with_different_causes_are_two_findings() -> None:
    def plant(times: Times) -> None:
        times["forward"][3] += 50
        times["input"][5] += 90

    findings = conclude(Facts(job(8, 100, plant=plant, noise=0.05)))[:2]
    assert {(each.kind, *each.ranks) for each in findings} == {
        ("COMPUTE_STRAGGLER", 3), ("INPUT_STRAGGLER", 5),
    }  # fmt: skip
    total = sum(each.cost_ns or 0 for each in findings)
    assert total == pytest.approx(price_ns(8, 100, plant, noise=0.05), rel=0.1)


def test_a_straggler_in_an_own_scope_names_the_scope() -> None:
    def plant(times: Times) -> None:
        times["other_scopes"] = np.full((4, 100), 5.0)
        times["other_scopes"][2] += 60

    finding = conclude(Facts(job(4, 100, plant=plant)))[0]
    assert (finding.kind, finding.ranks) == ("STRAGGLER", [2])
    assert (finding.phase, finding.scope) == (None, "rollout")


def test_a_straggler_in_several_phases_has_no_prefix() -> None:
    def plant(times: Times) -> None:
        for account in ("input", "forward", "unattributed"):
            times[account][2] += 30

    finding = conclude(Facts(job(4, 100, plant=plant)))[0]
    assert (finding.kind, finding.phase) == ("STRAGGLER", None)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_is_slow_in_some_units(ranks: int) -> None:
    def plant(times: Times) -> None:
        times["forward"][1, 100:130] += 100

    finding = conclude(Facts(job(ranks, 200, plant=plant, noise=0.05)))[0]
    assert (finding.kind, finding.phase) == ("COMPUTE_STRAGGLER", "forward")
    assert (finding.ranks, finding.steps) == ([1], [(100, 129)])
    assert not finding.moving
    assert finding.cost_ns == pytest.approx(price_ns(ranks, 200, plant, noise=0.05), rel=0.1)
    assert "steps 100 to 129" in finding.sentence


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_straggler_that_moves(ranks: int) -> None:
    def plant(times: Times) -> None:
        times["forward"][np.arange(120) % ranks, np.arange(120)] += 80

    finding = conclude(Facts(job(ranks, 120, plant=plant, noise=0.05)))[0]
    assert (finding.kind, finding.phase) == ("COMPUTE_STRAGGLER", "forward")
    assert finding.moving
    assert finding.ranks == list(range(ranks))
    assert finding.steps == []
    assert finding.cost_ns == pytest.approx(price_ns(ranks, 120, plant, noise=0.05), rel=0.1)
    assert "the slow rank changes" in finding.sentence


def test_a_slow_checkpoint_of_one_rank_is_not_a_straggler() -> None:
    def plant(times: Times) -> None:
        times["checkpoint"] = np.zeros((4, 100))
        times["checkpoint"][0, 4::5] = 200

    kinds = [each.kind for each in conclude(Facts(job(4, 100, plant=plant))) if each.cost_ns]
    assert kinds[0] == "CHECKPOINT_HEAVY"
    assert "STRAGGLER" not in " ".join(kinds)


def test_ranks_that_do_not_wait_have_no_stragglers() -> None:
    def plant(times: Times) -> None:
        times["forward"][1] += 60

    findings = conclude(Facts(job(4, 100, plant=plant, is_synchronised=False)))
    assert not [each for each in findings if "STRAGGLER" in each.kind]


def test_jitter_is_a_notice() -> None:
    (finding,) = conclude(Facts(job(16, 100, noise=0.2)))
    assert (finding.kind, finding.severity) == ("RANK_JITTER", "notice")
    assert finding.cost_ns == job(16, 100, noise=0.2).totals["waiting_for_ranks"]


def test_ranks_with_fewer_units() -> None:
    ledger = job(3, 100)
    lane = ledger.lanes[2]
    for account in lane.accounts:
        lane.outside["ended"] = lane.outside.get("ended", 0) + int(
            lane.accounts[account][70:].sum()
        )
        lane.accounts[account] = lane.accounts[account][:70]
    lane.start, lane.ns, lane.number = lane.start[:70], lane.ns[:70], lane.number[:70]
    lane.epoch, lane.waiting, lane.own = lane.epoch[:70], lane.waiting[:70], lane.own[:70]
    (finding,) = conclude(Facts(ledger))
    assert (finding.kind, finding.ranks) == ("UNEVEN", [2])
    assert finding.cost_ns == lane.outside["ended"]
    assert finding.evidence["units"] == {"2": 70}


def test_the_lower_median_of_the_other_rows() -> None:
    generator = np.random.default_rng(1)
    for count in (2, 3, 4, 5, 8, 9):
        values = generator.integers(0, 5, (count, 20))
        for row, medians in enumerate(lower_median_of_others(values)):
            others = np.sort(np.delete(values, row, axis=0), axis=0)
            assert (medians == others[(count - 2) // 2]).all()
