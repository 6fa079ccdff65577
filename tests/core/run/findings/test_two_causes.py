"""Two causes at once are the first two findings, each with its own price."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from cirron_otel.core.run.findings.conclude import conclude
from cirron_otel.core.run.findings.facts import Facts

from .ledgers import Times, job, price_ns


def _input(times: Times) -> None:
    times["input"] += 60


def _between(times: Times) -> None:
    times["between_units"] += 50


def _spikes(times: Times) -> None:
    times["backward"][:, 7::20] += 900


def _slowing(times: Times) -> None:
    times["forward"] += np.linspace(0, 120, 200)


def _straggler(times: Times) -> None:
    times["transfer"][3] += 70


def _part(times: Times) -> None:
    times["loss"][1, 60:100] += 300


def _checkpoints(times: Times) -> None:
    times["checkpoint"] = np.zeros((4, 200))
    times["checkpoint"][:, 9::10] = 500


_CAUSES = {
    "INPUT_BOUND": _input, "BETWEEN_UNITS": _between, "SPIKES": _spikes,
    "SLOWING_DOWN": _slowing, "H2D_STRAGGLER": _straggler, "COMPUTE_STRAGGLER": _part,
    "CHECKPOINT_HEAVY": _checkpoints,
}  # fmt: skip


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("kinds", list(combinations(_CAUSES, 2)))
def test_two_causes(kinds: tuple[str, str], noise: float) -> None:
    def plant(times: Times) -> None:
        for kind in kinds:
            _CAUSES[kind](times)

    findings = conclude(Facts(job(4, 200, plant=plant, noise=noise)))
    assert {each.kind for each in findings[:2]} == set(kinds)
    assert {each.severity for each in findings[2:]} <= {"notice"}
    costs = sum(each.cost_ns or 0 for each in findings[:2])
    assert costs == pytest.approx(price_ns(4, 200, plant, noise=noise), rel=0.12)
