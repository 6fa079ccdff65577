"""The findings of recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cirron_otel.core.run.findings.conclude import conclude, findings_of, headline_of, not_assessed
from cirron_otel.core.run.findings.finding import Finding
from cirron_otel.core.run.findings.run_facts import facts_of
from cirron_otel.core.run.opening import open_run
from tests.core.run.spools import Files, written
from tests.kit.examples import examples
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trees import hostile, random_spool, training


def _findings(folder: Path, files: Files) -> list[Finding]:
    """Return the findings of a spool after checking what holds for all runs."""
    reader = written(folder, files)
    with open_run(reader, reader) as run:
        facts = facts_of(run, world_size=3)
        findings = conclude(facts)
        assert findings == findings_of(run, world_size=3)
        total = 0 if run.ledger is None else run.ledger.total_ns
    json.dumps([each.to_json() for each in findings], allow_nan=False)
    claimed = sum(each.cost_ns or 0 for each in findings if each.severity != "notice")
    assert 0 <= claimed <= total
    assert all(each.share is None or 0 <= each.share <= 1 for each in findings)
    assert headline_of(findings, facts)
    assert not_assessed(facts)
    assert len({each.id for each in findings if each.severity != "notice"}) == len(
        [each for each in findings if each.severity != "notice"]
    )
    return findings


@pytest.mark.parametrize("seed", range(examples(1000, 25)))
def test_costs_of_generated_runs_are_at_most_the_total(tmp_path: Path, seed: int) -> None:
    _findings(tmp_path / "run", run_spool(seed))
    _findings(tmp_path / "tree", random_spool(seed))


def test_names_that_are_not_identifiers(tmp_path: Path) -> None:
    _findings(tmp_path / "hostile", hostile())


def test_a_loss_that_is_not_a_number_names_its_step(tmp_path: Path) -> None:
    files: Files = []
    for name, data in training(1, 30):
        batch = json.loads(data)
        for mark in sorted(batch["marks"], key=lambda each: each["ts_ns"])[20:]:
            mark["value"], mark["value_nonfinite"] = None, "nan"
        files.append((name, json.dumps(batch).encode()))
    reader = written(tmp_path / "nan", files)
    with open_run(reader, reader) as run:
        facts = facts_of(run)
        (series, *_) = facts.series
        first = int(np.flatnonzero(np.isnan(series.numbers))[0])
        finding = next(each for each in conclude(facts) if each.kind == "NON_FINITE")
        assert run.ledger is not None
        (lane, *_) = run.ledger.lanes
    ((step, _),) = finding.steps
    place = lane.number.tolist().index(step)
    assert lane.start[place] <= series.times[first] <= lane.start[place] + lane.ns[place]
    assert finding.severity == "critical"
