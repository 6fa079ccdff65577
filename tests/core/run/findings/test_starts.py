"""Slow starts, slow first units, compilation, and restarts."""

from __future__ import annotations

import numpy as np
import pytest

from cirron_otel.core.run.findings.conclude import conclude
from cirron_otel.core.run.findings.facts import Facts
from cirron_otel.core.run.findings.thresholds import Limits

from .failed_runs import failure, session
from .ledgers import START_NS, Times, job

_LONG = Limits({"short_run.seconds": 1})


def test_a_slow_start_is_a_notice_in_a_short_run() -> None:
    ledger = job(2, 100, outside_ms={"start_up": 9_000})
    (finding,) = conclude(Facts(ledger))
    assert (finding.kind, finding.severity) == ("START_UP", "notice")
    (finding,) = conclude(Facts(ledger), _LONG)
    assert (finding.kind, finding.severity) == ("START_UP", "critical")
    assert finding.cost_ns == 2 * 9_000_000_000
    assert finding.share == pytest.approx(9_000 / (9_000 + 9_550))
    assert "9 s" in finding.sentence


def test_slow_first_units() -> None:
    def plant(times: Times) -> None:
        times["warm_up"] = np.zeros((1, 100))
        times["warm_up"][:, :3] = 1_000

    (finding,) = conclude(Facts(job(plant=plant)), _LONG)
    assert (finding.kind, finding.severity) == ("WARM_UP", "warning")
    assert finding.steps == [(0, 2)]
    assert finding.cost_ns == 3_000_000_000


def test_compilation() -> None:
    def plant(times: Times) -> None:
        times["compilation"] = np.zeros((1, 100))
        times["compilation"][:, [0, 40]] = 3_000

    (finding,) = conclude(Facts(job(plant=plant)), _LONG)
    assert (finding.kind, finding.severity) == ("COMPILATION", "critical")
    assert finding.cost_ns == 6_000_000_000


def test_a_restart_costs_lost_units_the_pause_and_the_second_start() -> None:
    def plant(times: Times) -> None:
        times["lost"] = np.zeros((2, 100))
        times["lost"][:, 40:50] = sum(each[0, 0] for name, each in times.items() if name != "lost")
        for name, each in times.items():
            if name != "lost":
                each[:, 40:50] = 0

    ledger = job(2, 100, plant=plant, outside_ms={"start_up": 900, "paused": 500})
    for lane in ledger.lanes:
        lane.restarts = [(50, {"paused": 500_000_000, "start_up": 700_000_000, "idle": 0})]
        lane.number = np.r_[np.arange(50), np.arange(40, 90)]
    middle = START_NS + 5_000_000_000
    facts = Facts(
        ledger,
        failures=[failure("a", rank=0, time_ns=middle, error="RuntimeError: x")],
        sessions=[session("a", 0, START_NS, middle, "failed"),
                  session("b", 0, middle + 500, ledger.last_ns)],
    )  # fmt: skip
    finding = conclude(facts)[0]
    assert (finding.kind, finding.severity) == ("RESTARTED", "warning")
    assert finding.cost_ns == pytest.approx(2 * (955 + 500 + 700) * 1e6, rel=0.01)
    assert finding.evidence["repeated_units"] == 10
    assert finding.evidence["failures"] == [{"rank": 0, "error": "RuntimeError: x"}]
    assert "10 repeated steps" in finding.sentence
    assert finding.advice[0].gain_ns == pytest.approx(2 * 955e6, rel=0.01)
