"""Single slow units: spikes, and first batches of epochs."""

from __future__ import annotations

import numpy as np
import pytest

from cirron_otel.core.run.findings.conclude import conclude, headline_of
from cirron_otel.core.run.findings.facts import Facts
from cirron_otel.core.run.findings.words import period_of

from .ledgers import Times, job, price_ns


@pytest.mark.parametrize("ranks", [1, 3])
def test_regular_spikes_in_the_input(ranks: int) -> None:
    def plant(times: Times) -> None:
        times["input"][:, 40::50] += 400

    finding = conclude(Facts(job(ranks, 300, plant=plant, noise=0.1)))[0]
    assert (finding.kind, finding.phase, finding.every) == ("INPUT_SPIKES", "data_load", 50)
    assert finding.steps == [(number, number) for number in range(40, 300, 50)]
    assert finding.ranks == []
    assert finding.cost_ns == pytest.approx(price_ns(ranks, 300, plant, noise=0.1), rel=0.1)
    assert "every 50 steps" in finding.sentence
    assert "prefetch" in finding.advice[0].text


def test_irregular_spikes_in_backward() -> None:
    units = [7, 20, 61, 62, 90]

    def plant(times: Times) -> None:
        times["backward"][:, units] += 900

    finding = conclude(Facts(job(1, 100, plant=plant, noise=0.1)))[0]
    assert (finding.kind, finding.phase, finding.every) == ("SPIKES", "backward", None)
    assert finding.steps == [(7, 7), (20, 20), (61, 62), (90, 90)]
    assert finding.cost_ns == pytest.approx(5 * 900e6, rel=0.1)


def test_spikes_in_different_phases_are_different_findings() -> None:
    def plant(times: Times) -> None:
        times["forward"][:, 10::30] += 500
        times["input"][:, 15::30] += 400
        times["unattributed"][:, 20::30] += 600

    findings = conclude(Facts(job(1, 300, plant=plant)))[:3]
    assert [(each.kind, each.phase, each.steps[0][0]) for each in findings] == [
        ("SPIKES", None, 20), ("SPIKES", "forward", 10), ("INPUT_SPIKES", "data_load", 15),
    ]  # fmt: skip
    assert [each.cost_ns for each in findings] == [6 * 10**9, 5 * 10**9, 4 * 10**9]
    assert "the time that no phase covers" in findings[0].sentence


def test_spikes_in_several_phases_have_no_phase() -> None:
    def plant(times: Times) -> None:
        for account in ("forward", "input", "unattributed"):
            times[account][:, 10::30] += 300

    finding = conclude(Facts(job(1, 300, plant=plant)))[0]
    assert (finding.kind, finding.phase) == ("SPIKES", None)
    assert "several phases" in finding.sentence


def test_regular_spikes_of_one_rank_name_the_rank() -> None:
    def plant(times: Times) -> None:
        times["input"][2, 5::20] += 800

    finding = conclude(Facts(job(4, 200, plant=plant, noise=0.1)))[0]
    assert (finding.kind, finding.ranks, finding.every) == ("INPUT_SPIKES", [2], 20)
    assert finding.cost_ns == pytest.approx(price_ns(4, 200, plant, noise=0.1), rel=0.1)


def test_a_slow_first_batch_of_each_epoch() -> None:
    def plant(times: Times) -> None:
        times["input"][:, ::25] += 700

    ledger = job(1, 100, plant=plant, noise=0.1, epochs=4)
    finding = conclude(Facts(ledger))[0]
    assert (finding.kind, finding.phase) == ("SLOW_FIRST_BATCH", "data_load")
    assert finding.steps == [(0, 0), (25, 25), (50, 50), (75, 75)]
    assert finding.epochs == ["0", "1", "2", "3"]
    assert finding.cost_ns == pytest.approx(4 * 700e6, rel=0.1)
    assert "persistent_workers" in finding.advice[0].text
    assert [each.severity for each in conclude(Facts(ledger))[1:]] == []


def test_a_slow_first_batch_of_one_epoch_is_not_a_finding() -> None:
    def plant(times: Times) -> None:
        times["input"][:, 0] += 700

    assert conclude(Facts(job(1, 100, plant=plant))) == []


def test_requests_have_spikes() -> None:
    def plant(times: Times) -> None:
        times["busy"][:, 10::20] += 900

    ledger = job(1, 100, plant=plant, usual={"busy": 50, "idle": 100})
    finding = conclude(Facts(ledger, unit="request"))[0]
    assert (finding.kind, finding.every) == ("SPIKES", 20)
    assert "every 20 requests" in finding.sentence


def test_sentences_have_the_plural_of_units() -> None:
    def plant(times: Times) -> None:
        times["forward"][:, 10::20] += 900

    facts = Facts(job(1, 100, plant=plant), unit="batch")
    finding = conclude(facts)[0]
    assert "every 20 batches" in finding.sentence
    assert "at these batches" in finding.advice[0].text
    assert "of 100 batches is" in headline_of([], facts)


def test_spikes_of_entries_of_several_units() -> None:
    def plant(times: Times) -> None:
        times["forward"][:, 10] += 3000

    ledger = job(1, 100, plant=plant)
    ledger.lanes[0].size, ledger.lanes[0].number = 10, np.arange(0, 1000, 10)
    assert conclude(Facts(ledger))[0].steps == [(100, 109)]


@pytest.mark.parametrize(
    ("numbers", "period"),
    [
        ([15, 35, 55, 75, 95], 20),
        ([15, 35, 56, 75, 95], 20),
        ([9, 15, 35, 55, 75, 95], 20),
        ([15, 35, 41, 55, 75, 95], 20),
        ([15, 35, 55, 75, 95, 99], 20),
        ([9, 15, 35, 55, 75], None),
        ([9, 15, 35, 41, 55, 75, 95], None),
        ([3, 4, 5, 6, 7, 20], None),
        ([15, 35], None),
    ],
)
def test_period_of_numbers_of_which_one_may_be_at_another_place(
    numbers: list[int], period: int | None
) -> None:
    assert period_of(numbers) == period
