"""Advice depends on the recorded configuration of the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cirron_otel import semconv as sc
from cirron_otel.core.run.findings.conclude import conclude
from cirron_otel.core.run.findings.facts import Facts
from cirron_otel.core.run.findings.finding import Finding

from .ledgers import Times, job


def _finding(account: str, added: float, settings: Mapping[str, Any], ranks: int = 1) -> Finding:
    def plant(times: Times) -> None:
        times[account] += added

    ledger = job(ranks, 120, plant=plant)
    for lane in ledger.lanes:
        lane.host = "a"
    del ledger.lanes[0].parts["transfer", "h2d"]
    values = {name: {value: [0]} for name, value in settings.items()}
    return conclude(Facts(ledger, settings=values))[0]


def _input(settings: Mapping[str, Any], ranks: int = 1) -> Finding:
    finding = _finding("input", 300, settings, ranks)
    assert finding.kind == "INPUT_BOUND"
    return finding


def test_without_workers_their_number_and_the_cpus_are_named() -> None:
    """A unit takes about 92 ms besides loading, which takes 301 ms."""
    finding = _input({sc.LOADER_WORKERS: 0, sc.CPU_ALLOWED: 8})
    advice = finding.advice[0]
    assert advice.text.startswith("num_workers is 0 on 8 CPUs; loading takes 301 ms a step")
    assert "about 4 workers hide it" in advice.text
    assert "DataLoader(num_workers=4, persistent_workers=True)" in advice.text
    assert advice.gain_ns == finding.cost_ns


def test_fewer_cpus_hide_a_part() -> None:
    finding = _input({sc.LOADER_WORKERS: 0, sc.CPU_ALLOWED: 8, sc.CPU_LIMIT: 2.0})
    advice = finding.advice[0]
    assert "on 2 CPUs" in advice.text
    assert "about 4 workers would hide it, and 2 a part of it" in advice.text
    assert "DataLoader(num_workers=2," in advice.text
    assert finding.cost_ns is not None
    assert 0.7 * finding.cost_ns < (advice.gain_ns or 0) < 0.9 * finding.cost_ns


def test_the_ranks_of_a_host_share_its_cpus() -> None:
    assert "on 2 CPUs" in _input({sc.LOADER_WORKERS: 0, sc.CPU_ALLOWED: 8}, 4).advice[0].text


def test_more_workers_than_there_are() -> None:
    advice = _input({sc.LOADER_WORKERS: 2, sc.CPU_ALLOWED: 64}).advice[0]
    assert advice.text.startswith("num_workers is 2 on 64 CPUs")
    assert "DataLoader(num_workers=9," in advice.text


def test_less_work_if_all_cpus_load() -> None:
    finding = _input({sc.LOADER_WORKERS: 2, sc.CPU_ALLOWED: 2})
    assert len(finding.advice) == 1
    text = finding.advice[0].text
    assert text.startswith("less work per sample")
    assert "num_workers is 2 on 2 CPUs" in text
    assert "about 9 would hide it" in text


@pytest.mark.parametrize("settings", [{}, {sc.CPU_ALLOWED: 8}])
def test_less_work_if_no_number_of_workers_helps(settings: Mapping[str, Any]) -> None:
    """A step takes almost only loading."""

    def plant(times: Times) -> None:
        times["input"] += 1e6

    ledger = job(1, 120, plant=plant)
    facts = Facts(ledger, settings={sc.LOADER_WORKERS: {0: [0]}, **{
        name: {value: [0]} for name, value in settings.items()
    }})  # fmt: skip
    first, second = conclude(facts)[0].advice
    assert first.text.startswith("less work per sample")
    assert second.text.startswith("more workers, which hide only a part of it: num_workers is 0")


@pytest.mark.parametrize(
    ("settings", "cpus"),
    [({sc.CPU_ALLOWED: 16, sc.CPU_COUNT: 64}, 16), ({sc.CPU_ALLOWED: 64, sc.CPU_COUNT: 64}, 16),
     ({sc.CPU_COUNT: 32}, 8), ({sc.CPU_ALLOWED: 64, sc.CPU_LIMIT: 3.5}, 3)],
)  # fmt: skip
def test_ranks_share_cpus_unless_each_has_its_own(settings: Mapping[str, Any], cpus: int) -> None:
    text = _input({sc.LOADER_WORKERS: 0, **settings}, 4).advice[0].text
    assert f"on {cpus} CPUs" in text


@pytest.mark.parametrize("settings", [{}, {sc.LOADER_WORKERS: "0"}, {sc.LOADER_WORKERS: -1}])
def test_the_usual_advice_if_nothing_is_known(settings: Mapping[str, Any]) -> None:
    assert "num_workers=..." in _input(settings).advice[0].text


def test_ranks_that_differ_have_no_common_setting() -> None:
    facts = Facts(settings={sc.LOADER_WORKERS: {0: [0], 2: [1]}})
    assert facts.setting(sc.LOADER_WORKERS) is None


_OTHERS: list[tuple[str, str, Mapping[str, Any], str, str]] = [
    ("transfer", "H2D_BOUND", {sc.LOADER_PINNED: True}, "non_blocking", "DataLoader"),
    ("optimizer", "OPTIMIZER_HEAVY", {sc.OPTIMIZER_NAME: "AdamW"}, "AdamW(..., fused", "Loader"),
    ("optimizer", "OPTIMIZER_HEAVY", {sc.OPTIMIZER_NAME: "Lion"}, "a larger batch", "fused=True"),
    ("optimizer", "OPTIMIZER_HEAVY",
     {sc.OPTIMIZER_NAME: "SGD", sc.OPTIMIZER_FOREACH: True}, "SGD(..., fused=True)", "foreach"),
    ("optimizer", "OPTIMIZER_HEAVY", {sc.OPTIMIZER_FUSED: True}, "a larger batch", "fused"),
    ("forward", "FORWARD_HEAVY", {sc.MODEL_COMPILED: True}, "is compiled", "torch.compile"),
]  # fmt: skip


@pytest.mark.parametrize(("account", "kind", "settings", "advised", "left_out"), _OTHERS)
def test_advice_leaves_out_what_the_training_does(
    account: str, kind: str, settings: Mapping[str, Any], advised: str, left_out: str
) -> None:
    finding = _finding(account, 200, settings)
    assert finding.kind == kind
    assert advised in finding.advice[0].text
    assert left_out not in finding.advice[0].text
