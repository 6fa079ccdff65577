"""Whatever an endpoint answers to the parts of a batch, no span is lost, or stored twice.

`make faults SEEDS=200` runs more seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.targets.sql.conftest import postgres_server
from tests.kit.backends.postgres import Postgres

from .driver import Plan, database_url, run

__all__ = ["postgres_server"]

SEEDS = 50
ALWAYS = (0, 9, 26)
"""Seeds of every run: with lanes, partial successes, refusals, halved requests, and a kill."""


def _seeds(chosen: tuple[int, ...]) -> list[object]:
    others = (
        pytest.param(seed, marks=pytest.mark.matrix("faults"))
        for seed in range(SEEDS)
        if seed not in chosen
    )
    return [*chosen, *others]


@pytest.mark.parametrize("seed", _seeds(ALWAYS))
def test_each_acknowledged_span_is_delivered_refused_or_counted(tmp_path: Path, seed: int) -> None:
    outcome = run(tmp_path, Plan.drawn(seed, 1), database_url(tmp_path))
    assert outcome.errors() == [], str(outcome)


@pytest.mark.parametrize("seed", _seeds(ALWAYS[:1]))
def test_two_collectors_on_one_database_store_each_span_once(
    tmp_path: Path, seed: int, postgres_server: Postgres
) -> None:
    outcome = run(tmp_path, Plan.drawn(seed, 2), postgres_server.new_database())
    assert outcome.errors() == [], str(outcome)
