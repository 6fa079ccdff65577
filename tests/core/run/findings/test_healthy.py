"""Healthy jobs have no warning, whatever their noise."""

from __future__ import annotations

import pytest

from cirron_otel.core.run.findings.conclude import conclude, headline_of, status_of
from cirron_otel.core.run.findings.facts import Facts

from .ledgers import job


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0, 0.05, 0.2])
@pytest.mark.parametrize("units", [10, 50, 400])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16])
def test_healthy_jobs(ranks: int, units: int, noise: float, seed: int) -> None:
    for is_synchronised in (True, False):
        ledger = job(ranks, units, noise=noise, seed=seed, is_synchronised=is_synchronised)
        facts = Facts(ledger)
        findings = conclude(facts)
        assert {each.severity for each in findings} <= {"notice"}
        assert status_of(findings) == "healthy"
        headline = headline_of(findings, facts)
        assert f"{units} steps" in headline
        assert "backward " in headline
