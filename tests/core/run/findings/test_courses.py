"""Slow intervals, and runs that slow down."""

from __future__ import annotations

import numpy as np
import pytest

from cirron_otel.core.run.findings.conclude import conclude
from cirron_otel.core.run.findings.facts import Facts

from .ledgers import Times, job, price_ns


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("noise", [0, 0.1])
def test_a_slow_interval(ranks: int, noise: float) -> None:
    def plant(times: Times) -> None:
        times["forward"][:, 100:130] += 90

    finding = conclude(Facts(job(ranks, 200, plant=plant, noise=noise)))[0]
    assert (finding.kind, finding.phase, finding.ranks) == ("SLOW_INTERVAL", "forward", [])
    ((first, last),) = finding.steps
    assert abs(first - 100) <= 1
    assert abs(last - 129) <= 1
    assert finding.cost_ns == pytest.approx(price_ns(ranks, 200, plant, noise=noise), rel=0.1)


def test_a_slow_interval_at_the_end() -> None:
    def plant(times: Times) -> None:
        times["backward"][:, 150:] += 90

    finding = conclude(Facts(job(1, 200, plant=plant, noise=0.05)))[0]
    assert (finding.kind, finding.steps) == ("SLOW_INTERVAL", [(150, 199)])


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_phase_that_grows(ranks: int) -> None:
    def plant(times: Times) -> None:
        times["forward"] += 0.5 * np.arange(200)

    finding = conclude(Facts(job(ranks, 200, plant=plant, noise=0.1)))[0]
    assert (finding.kind, finding.phase, finding.steps) == ("SLOWING_DOWN", "forward", [])
    assert finding.cost_ns == pytest.approx(price_ns(ranks, 200, plant, noise=0.1), rel=0.1)
    assert "grows in forward" in finding.sentence


def test_a_change_that_stays() -> None:
    def plant(times: Times) -> None:
        for account in ("forward", "backward", "optimizer", "input"):
            times[account][:, 60:] *= 2

    finding = conclude(Facts(job(1, 150, plant=plant, noise=0.05)))[0]
    assert (finding.kind, finding.steps) == ("SLOWING_DOWN", [(60, 149)])
    assert finding.cost_ns == pytest.approx(price_ns(1, 150, plant, noise=0.05), rel=0.1)
    assert "From step 60 on" in finding.sentence


def test_a_run_that_becomes_faster_is_healthy() -> None:
    def plant(times: Times) -> None:
        times["forward"] += 0.5 * np.arange(200)[::-1]

    assert not [e for e in conclude(Facts(job(1, 200, plant=plant))) if e.severity != "notice"]


def test_24_units_are_too_few_to_slow_down() -> None:
    def plant(times: Times) -> None:
        times["forward"] += 10 * np.arange(times["forward"].shape[1])

    kinds = [each.kind for each in conclude(Facts(job(1, 24, plant=plant)))]
    assert "SLOWING_DOWN" not in kinds
    assert conclude(Facts(job(1, 25, plant=plant)))[0].kind == "SLOWING_DOWN"
