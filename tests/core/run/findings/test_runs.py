"""The findings of recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cirron_otel.core.analysis.sessions import State
from cirron_otel.core.analysis.summary import SessionSummary
from cirron_otel.core.run.findings.conclude import conclude, findings_of, headline_of, not_assessed
from cirron_otel.core.run.findings.finding import Finding
from cirron_otel.core.run.findings.run_facts import facts_of, state_of
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


def test_samples_of_memory_and_out_of_memory_errors(tmp_path: Path) -> None:
    files: Files = []
    for number, (name, data) in enumerate(training(1, 30)):
        batch = json.loads(data)
        batch["marks"].sort(key=lambda each: each["ts_ns"])
        for place, mark in enumerate(batch["marks"]):
            mark |= {
                "name": "memory", "value_type": "int", "value": (number * 30 + place + 20) * 2**26,
                "attrs": {"backend": "cuda", "device_id": 0, "device_total_bytes": 2**33},
            }  # fmt: skip
        last = batch["marks"][-1]
        error = {"name": "oom", "value_type": "int", "value": 2**30, "attrs": {"reason": "alloc"}}
        batch["marks"].append({**last, "id": f"{number + 1:032x}", **error})
        files.append((name, json.dumps(batch).encode()))
    reader = written(tmp_path / "memory", files)
    with open_run(reader, reader) as run:
        facts = facts_of(run)
    (use,) = facts.memory
    assert (use.device, use.capacity_bytes, use.peak_bytes) == ("cuda:0", 2**33, 79 * 2**26)
    assert use.sizes is not None
    assert (np.diff(use.sizes) > 0).all()
    assert [each.requested_bytes for each in facts.out_of_memory] == [2**30, 2**30]
    findings = {each.kind: each for each in conclude(facts)}
    assert findings["CREEP_CONFIRMED"].severity == "critical"
    assert findings["OUT_OF_MEMORY"].evidence["retried"] is True


@pytest.mark.parametrize(
    ("states", "state"),
    [(["closed"], "ended"), (["closed", "open"], "running"), (["failed"], "ended"),
     (["closed", "killed"], "incomplete"), (["unfinished"], "incomplete")],
)  # fmt: skip
def test_the_state_of_a_run(states: list[State], state: str) -> None:
    sessions = [SessionSummary(str(number), each) for number, each in enumerate(states)]
    assert state_of(sessions) == state
    sessions.append(SessionSummary("x", "failed", error="KeyboardInterrupt: "))
    assert state_of(sessions) == ("running" if state == "running" else "interrupted")
