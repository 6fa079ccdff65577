"""Losses and gradients: values that are not finite, diverge or explode."""

from __future__ import annotations

import numpy as np

from cirron_otel.core.run.findings.conclude import conclude, status_of
from cirron_otel.core.run.findings.facts import Facts, ValueSeries

from .ledgers import START_NS, Times, job, second_from


def _series(
    numbers: np.ndarray, name: str = "loss", rank: int | None = None, *, is_eval: bool = False
) -> ValueSeries:
    """Return a mark at the end of each unit of `job()`."""
    times = START_NS + np.rint((np.arange(len(numbers)) + 0.9) * 95.5e6).astype(np.int64)
    return ValueSeries(name, rank, numbers, times, is_eval)


def test_the_first_value_that_is_not_finite_names_the_step() -> None:
    loss = np.r_[np.linspace(3, 1, 70), np.full(30, np.nan)]
    norm = np.r_[np.ones(71), np.full(29, np.inf)]
    findings = conclude(Facts(job(), series=[_series(norm, "grad_norm"), _series(loss)]))
    (finding,) = findings
    assert (finding.kind, finding.severity) == ("NON_FINITE", "critical")
    assert finding.steps == [(70, 70)]
    assert finding.sentence == (
        "loss is NaN at step 70; 59 values of loss, and of grad_norm are not finite."
    )
    assert finding.evidence["names"] == {"grad_norm": 29, "loss": 30}


def test_infinite_gradients_that_recover_are_a_warning() -> None:
    norm = np.ones(100)
    norm[[0, 1, 50]] = np.inf
    (finding,) = conclude(Facts(job(), series=[_series(norm, "grad_norm")]))
    assert (finding.kind, finding.severity) == ("NON_FINITE", "warning")
    assert finding.steps == [(0, 0)]


def test_a_loss_that_diverges() -> None:
    loss = np.r_[np.linspace(2, 0.5, 50), np.geomspace(0.5, 40, 50)]
    (finding,) = conclude(Facts(job(), series=[_series(loss)]))
    assert (finding.kind, finding.severity) == ("DIVERGING", "critical")
    assert finding.evidence["best"] < 0.7
    ((first, last),) = finding.steps
    assert 35 <= first <= 60
    assert last == 99


def test_losses_that_do_not_diverge() -> None:
    generator = np.random.default_rng(3)
    falling = np.linspace(3, 0.2, 100) * np.exp(0.3 * generator.standard_normal(100))
    late = np.r_[np.full(95, 1.0), np.full(5, 9.0)]
    worse = np.r_[np.linspace(2, 1, 50), np.linspace(1, 1.9, 50)]
    below_zero = np.linspace(1, -50, 100)
    for loss in (falling, late, worse, below_zero):
        assert conclude(Facts(job(), series=[_series(loss)])) == []
    grows = np.geomspace(0.5, 40, 100)
    for series in (_series(grows, "steps"), _series(grows, is_eval=True), _series(grows[:29])):
        assert conclude(Facts(job(), series=[series])) == []


def test_values_are_those_of_a_training() -> None:
    """The second training begins with a higher loss and a larger gradient than the first ends."""
    ledger = second_from(job(), 60)
    loss = np.r_[np.linspace(1, 0.1, 60), np.linspace(9, 8, 40)]
    rising = np.r_[np.linspace(0.3, 0.1, 70), np.linspace(1, 9, 30)]
    norm = np.r_[np.full(60, 0.01), np.full(40, 20.0)]
    series = [_series(loss), _series(rising, "other_loss"), _series(norm, "grad_norm")]
    found = conclude(Facts(ledger, series=series))
    assert [each.sentence.split()[0] for each in found] == ["other_loss"]
    kinds = [each.kind for each in conclude(Facts(job(), series=series))]
    assert "EXPLODING_GRADIENT" in kinds


def test_a_gradient_that_explodes() -> None:
    norm = np.exp(0.3 * np.random.default_rng(1).standard_normal(100))
    norm[[40, 80]] = 500
    (finding,) = conclude(Facts(job(), series=[_series(norm, "grad_norm", 0)]))
    assert (finding.kind, finding.severity) == ("EXPLODING_GRADIENT", "warning")
    assert finding.steps == [(40, 40), (80, 80)]
    assert "500" in finding.sentence


def test_wrong_values_come_ahead_of_lost_time() -> None:
    def plant(times: Times) -> None:
        times["input"] += 100

    facts = Facts(job(plant=plant), series=[_series(np.full(100, np.nan))])
    findings = conclude(facts)
    assert [each.kind for each in findings] == ["NON_FINITE", "INPUT_BOUND"]
    assert {each.severity for each in findings} == {"critical"}
    assert status_of(findings) == "critical"


def test_values_without_units() -> None:
    times = np.full(40, -(2**63))
    series = ValueSeries("loss", None, np.r_[np.ones(30), np.full(10, np.inf)], times)
    (finding,) = conclude(Facts(series=[series]))
    assert finding.sentence.startswith("loss is infinite at its value 31;")
