"""Causes in every unit, and scopes that take too long: kind, phase, price."""

from __future__ import annotations

import numpy as np
import pytest

from cirron_otel.core.run.findings.conclude import conclude, not_assessed
from cirron_otel.core.run.findings.facts import Facts, MemoryUse
from cirron_otel.core.run.findings.thresholds import Limits

from .ledgers import USUAL, Times, job, price_ns

_CASES = {
    "INPUT_BOUND": ("input", "data_load", 40, 1),
    "H2D_BOUND": ("transfer", "h2d", 40, 0.5),
    "WAIT_HEAVY": ("unattributed", None, 40, 2),
    "BETWEEN_UNITS": ("between_units", None, 40, 2),
    "OPTIMIZER_HEAVY": ("optimizer", "optimizer_step", 60, 8 - (30 + 50) / 4),
    "LOSS_HEAVY": ("loss", "loss", 80, 2 - 30),
}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("kind", _CASES)
def test_a_slow_phase_of_every_unit(kind: str, ranks: int) -> None:
    account, phase, added, usual = _CASES[kind]

    def plant(times: Times) -> None:
        times[account] += added

    ledger = job(ranks, 120, plant=plant, noise=0.05)
    finding = conclude(Facts(ledger))[0]
    assert finding.kind == kind
    assert finding.severity == "critical"
    assert finding.phase == phase
    assert finding.ranks == []
    assert finding.steps == []
    expected = (added + usual) * 1e6 * 120 * ranks
    assert finding.cost_ns == pytest.approx(expected, rel=0.1)
    assert finding.share == pytest.approx(expected / ledger.total_ns, rel=0.1)
    assert finding.share_low is not None
    assert finding.share_low < (finding.share or 0)
    assert finding.running_share is not None
    assert finding.running_share >= (finding.share or 0)
    assert f"{100 * finding.running_share:.0f} % of the time" in finding.sentence
    assert finding.evidence["per_unit_ns"] == pytest.approx((added + usual) * 1e6, rel=0.1)
    assert finding.advice[0].gain_ns == finding.cost_ns


def test_advice_for_input_names_pin_memory_if_batches_are_copied() -> None:
    def plant(times: Times) -> None:
        times["input"] += 40

    ledger = job(plant=plant)
    advice = conclude(Facts(ledger))[0].advice[0].text
    assert "num_workers" in advice
    assert "pin_memory=True" in advice
    del ledger.lanes[0].parts["transfer", "h2d"]
    assert "pin_memory" not in conclude(Facts(ledger))[0].advice[0].text


_SCOPES = {
    "CHECKPOINT_HEAVY": ("checkpoint", "save_checkpoint"),
    "EVALUATION_HEAVY": ("evaluation", "validation"),
    "LOGGING_HEAVY": ("logging", "log_metrics"),
}


@pytest.mark.parametrize("slow_ranks", [None, 1])
@pytest.mark.parametrize("kind", _SCOPES)
def test_a_scope_every_ten_units_costs_its_time_in_all_ranks(
    kind: str, slow_ranks: int | None
) -> None:
    account, name = _SCOPES[kind]

    def plant(times: Times) -> None:
        times[account] = np.zeros((4, 100))
        times[account][:slow_ranks, 4::10] = 600

    ledger = job(4, 100, plant=plant, noise=0.02)
    finding = conclude(Facts(ledger))[0]
    assert finding.kind == kind
    assert finding.every == 10
    assert finding.scope == name
    assert finding.ranks == ([] if slow_ranks is None else [0])
    assert finding.cost_ns == pytest.approx(price_ns(4, 100, plant, noise=0.02), rel=0.1)
    assert "every 10 steps" in finding.sentence
    assert "600 ms" in finding.sentence


def test_garbage_collection_and_tracing() -> None:
    def plant(times: Times) -> None:
        times["garbage_collection"] = np.zeros((1, 100))
        times["garbage_collection"][:, ::4] = 100
        times["tracing"] = np.full((1, 100), 12.0)

    findings = conclude(Facts(job(1, 100, plant=plant)))
    assert [(each.kind, each.severity) for each in findings] == [
        ("GARBAGE_COLLECTION", "warning"), ("TRACING", "warning"),
    ]  # fmt: skip
    assert [each.cost_ns for each in findings] == [2_500_000_000, 1_200_000_000]


def test_collectives() -> None:
    def plant(times: Times) -> None:
        times["communication"] = np.full((2, 100), 20.0)

    finding = conclude(Facts(job(2, 100, plant=plant)))[0]
    assert (finding.kind, finding.severity) == ("COMMUNICATION_BOUND", "warning")
    assert finding.cost_ns == 2 * 100 * 20_000_000


def test_long_forward_passes_and_own_scopes_are_notices() -> None:
    def plant(times: Times) -> None:
        times["forward"] += 80
        times["other_scopes"] = np.full((1, 100), 60.0)

    findings = conclude(Facts(job(1, 100, plant=plant)))
    assert [(each.kind, each.severity) for each in findings] == [
        ("FORWARD_HEAVY", "notice"), ("OTHER_SCOPE", "notice"),
    ]  # fmt: skip
    assert findings[1].scope == "rollout"
    assert findings[0].cost_ns == pytest.approx((30 + 80 - 50) * 1e8, rel=0.01)


def test_two_causes_have_their_own_prices() -> None:
    def plant(times: Times) -> None:
        times["input"] += 30
        times["between_units"] += 50

    findings = conclude(Facts(job(2, 100, plant=plant, noise=0.05)))
    assert [each.kind for each in findings[:2]] == ["BETWEEN_UNITS", "INPUT_BOUND"]
    assert findings[0].cost_ns == pytest.approx(52e6 * 200, rel=0.1)
    assert findings[1].cost_ns == pytest.approx(31e6 * 200, rel=0.1)


@pytest.mark.parametrize("factor", [0.8, 1.25])
@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_of_a_warning(factor: float, seed: int) -> None:
    share = 0.05 * factor
    rest = sum(USUAL.values()) - USUAL["input"]

    def plant(times: Times) -> None:
        times["input"] *= rest * share / (1 - share)

    findings = conclude(Facts(job(1, 300, plant=plant, noise=0.05, seed=seed)))
    severities = {each.severity for each in findings if each.kind == "INPUT_BOUND"}
    assert severities == {"warning" if factor > 1 else "notice"}


def test_thresholds_can_be_changed() -> None:
    def plant(times: Times) -> None:
        times["input"] += 40

    ledger = job(plant=plant)
    limits = Limits({"input_bound.critical": 0.9, "input_bound.warning": 0.5})
    assert conclude(Facts(ledger), limits)[0].severity == "notice"
    limits = Limits({"input_bound.critical": 0.9})
    assert conclude(Facts(ledger), limits)[0].severity == "warning"


def test_without_times_on_the_device_waiting_is_at_most_a_warning() -> None:
    def plant(times: Times) -> None:
        times["unattributed"] += 80

    ledger = job(plant=plant)
    facts = Facts(ledger, memory=[MemoryUse(None, "cuda:0", 1)])
    finding = conclude(facts)[0]
    assert (finding.kind, finding.severity) == ("WAIT_HEAVY", "warning")
    assert finding.sentence.endswith("it may be the work of the device.")
    assert "WAIT_HEAVY" in {each["kind"] for each in not_assessed(facts)}
    ledger.lanes[0].device = np.full(100, 50_000_000)
    assert conclude(facts)[0].severity == "critical"
    assert "WAIT_HEAVY" not in {each["kind"] for each in not_assessed(facts)}


def test_requests_have_no_steady_kinds() -> None:
    def plant(times: Times) -> None:
        times["input"] += 400

    findings = conclude(Facts(job(plant=plant, outside_ms={"start_up": 90_000}), unit="request"))
    assert findings == []


def test_a_run_without_forward_and_backward_is_not_heavy_in_its_optimizer() -> None:
    ledger = job(usual={"optimizer": 50, "between_units": 1})
    assert conclude(Facts(ledger)) == []
