"""The cycles of lanes that are aligned by unit number."""

from __future__ import annotations

import numpy as np

from cirron_otel.core.run.findings.claims import Claims
from cirron_otel.core.run.findings.conclude import conclude
from cirron_otel.core.run.findings.cycles import Cycles, align, aligned_groups, divided
from cirron_otel.core.run.findings.facts import Facts

from .ledgers import MS, Times, job, second_from


def test_lanes_with_equal_numbers_are_not_copied() -> None:
    ledger = job(3, 50)
    aligned = align(ledger, [0, 1, 2])
    values = ledger.lanes[1].accounts["forward"]
    assert aligned.of(1, values) is values


def test_the_last_of_a_repeated_unit_counts() -> None:
    ledger = job(2, 50)
    ledger.lanes[1].number = np.r_[np.arange(30), np.arange(20, 40)]
    aligned = align(ledger, [0, 1])
    assert aligned.numbers.tolist() == list(range(40))
    values = np.arange(50)
    assert aligned.of(0, values).tolist() == list(range(40))
    assert aligned.of(1, values).tolist() == [*range(20), *range(30, 50)]
    claims = Claims(ledger)
    bid = claims.bid()
    assert aligned.add(bid, 1, "forward", np.arange(1, 41)).tolist() == list(range(1, 41))
    taken = claims.left(1, "forward") - bid.left(1, "forward")
    assert taken.tolist() == [*range(1, 21), *[0] * 10, *range(21, 41)]


def test_a_lane_with_few_units_is_left_out() -> None:
    ledger = job(3, 50)
    ledger.lanes[2] = job(3, 10).lanes[2]
    assert align(ledger, [0, 1, 2]).lanes == [0, 1]


def test_lanes_that_do_not_wait_are_groups_of_their_own() -> None:
    assert [each.lanes for each in aligned_groups(job(3, 20, is_synchronised=False))] == [
        [0], [1], [2],
    ]  # fmt: skip
    assert [each.lanes for each in aligned_groups(job(3, 20, noise=0.1))] == [[0, 1, 2]]


def test_units_are_judged_within_their_training() -> None:
    def plant(times: Times) -> None:
        for account in ("forward", "backward"):
            times[account][:, 30:] *= 4

    for ranks in (1, 3):
        ledger = second_from(job(ranks, 100, noise=0.05, plant=plant), 30)
        assert conclude(Facts(ledger)) == []
        assert conclude(Facts(job(ranks, 100, noise=0.05, plant=plant)))
        (aligned,) = aligned_groups(ledger)
        parts = divided(aligned, ledger.lanes)
        assert [each.numbers.tolist() for each in parts] == [
            [*range(30)], [*range(30, 100)],
        ]  # fmt: skip
        medians = [Cycles(each, Claims(ledger)).median_ns for each in parts]
        assert medians[1] > 1.5 * medians[0]


def test_lanes_that_lack_a_unit_are_divided_by_the_trainings_of_the_first() -> None:
    ledger = second_from(job(2, 50, noise=0.05), 30)
    ledger.lanes[0].number = np.delete(np.arange(51), 10)
    (aligned,) = aligned_groups(ledger)
    numbers = [[*range(10), *range(11, 31)], [*range(31, 50)]]
    for part, expected in zip(divided(aligned, ledger.lanes), numbers, strict=True):
        assert part.numbers.tolist() == expected
        for lane in (0, 1):
            assert part.of(lane, ledger.lanes[lane].number).tolist() == expected
    assert conclude(Facts(ledger)) == []


def test_the_cost_of_one_training_is_certain() -> None:
    """The lower bound of a cost is that of two samples, not that of one with a trend."""

    def plant(times: Times) -> None:
        times["input"][:, 50:] += 12

    finding, *_ = conclude(Facts(second_from(job(1, 100, noise=0.05, plant=plant), 50)))
    assert (finding.kind, finding.severity) == ("INPUT_BOUND", "warning")
    assert finding.share_low is not None
    assert finding.share is not None
    assert finding.share_low > 0.9 * finding.share


def test_work_is_the_lower_median_and_excludes_scopes() -> None:
    def plant(times: Times) -> None:
        times["forward"] += np.array([[0], [10], [20], [30]])
        times["checkpoint"] = np.full((4, 20), 100.0)

    ledger = job(4, 20, plant=plant)
    (aligned,) = aligned_groups(ledger)
    cycles = Cycles(aligned, Claims(ledger))
    assert cycles.account("forward").tolist() == [40 * MS] * 20
    assert cycles.median_ns == (95.5 + 10) * MS
    assert cycles.deviation_ns == 0


def test_spikes_of_ranks_that_do_not_wait_name_the_rank() -> None:
    def plant(times: Times) -> None:
        times["input"][2, 5::10] += 900

    finding = conclude(Facts(job(4, 100, plant=plant, is_synchronised=False)))[0]
    assert (finding.kind, finding.ranks, finding.every) == ("INPUT_SPIKES", [2], 10)
    assert finding.cost_ns == 10 * 900 * MS


def test_lost_and_stalled_units_do_not_change_the_median() -> None:
    def plant(times: Times) -> None:
        times["lost"] = np.zeros((1, 100))
        for name, each in times.items():
            if name != "lost":
                times["lost"][:, :60] += each[:, :60]
                each[:, :60] = 0

    ledger = job(plant=plant)
    (aligned,) = aligned_groups(ledger)
    cycles = Cycles(aligned, Claims(ledger))
    assert cycles.is_steady.sum() == 40
    assert cycles.median_ns == 95.5 * MS
