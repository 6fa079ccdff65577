"""Real programs with planted causes: the table of them, their scores, and some of their reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.findings.finding import Finding
from cirron_otel.core.run.findings.thresholds import KINDS, is_notice

from . import __main__ as program
from .programs import PROGRAMS
from .real import RealResult, Runner, result_of

_TRIES = 3
"""Other load on the machine may hide a cause, or be one."""
FEW = (
    "slow_dataset", "slow_scheduler", "frequent_checkpoints", "slow_first_batch_of_each_epoch",
    "loss_that_is_not_a_number", "out_of_memory_and_retried", "rank_with_slow_input", "killed_rank",
)  # fmt: skip


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as running:
        yield running


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.matrix("sick-runs")
@pytest.mark.parametrize("name", FEW)
def test_planted_cause_is_the_first_finding_and_its_twin_has_no_critical_one(
    runner: Runner, name: str
) -> None:
    for is_sick in (True, False):
        results: list[RealResult] = []
        while not results or (results[-1].outcome != "right first" and len(results) < _TRIES):
            results.append(result_of(runner, PROGRAMS[name], is_sick))
        assert results[-1].outcome == "right first", [each.shown for each in results]


def test_there_are_forty_programs_with_known_kinds_and_descriptions() -> None:
    assert len(PROGRAMS) >= 40
    assert {each.ranks for each in PROGRAMS.values()} == {1, 2}
    for each in PROGRAMS.values():
        assert set(each.expected.kinds) <= set(KINDS)
        assert each.is_notice is (is_notice(each.expected.kinds[0]) or each.name == "slow_start")


def found(kind: str, severity: Any = "critical", **others: Any) -> dict[str, Any]:
    return Finding(kind, severity, 10**9, 0.5, "A sentence.", **others).to_json()


@pytest.mark.parametrize(
    ("name", "is_sick", "findings", "outcome"),
    [
        ("slow_dataset", True, [found("INPUT_BOUND", phase="data_load")], "right first"),
        ("slow_dataset", True, [found("WAIT_HEAVY")], "wrong"),
        ("slow_dataset", True, [found("START_UP", "notice")], "silent"),
        ("slow_dataset", False, [found("INPUT_BOUND", "warning")], "right first"),
        ("slow_dataset", False, [found("INPUT_BOUND")], "false alarm"),
        ("slow_start", True, [found("START_UP", "notice")], "right first"),
        ("slow_start", True, [found("SPIKES", "warning"), found("START_UP", "notice")],
         "right first"),
        ("slow_start", True, [found("INPUT_BOUND"), found("START_UP", "notice")], "wrong"),
        ("loss_that_is_not_a_number", True, [found("NON_FINITE", steps=[(40, 40)])], "right first"),
        ("loss_that_is_not_a_number", True, [found("NON_FINITE", steps=[(7, 7)])], "wrong"),
    ],
)  # fmt: skip
def test_outcome_of_a_report(
    name: str, is_sick: bool, findings: list[dict[str, Any]], outcome: str
) -> None:
    assert RealResult(PROGRAMS[name], is_sick, findings).outcome == outcome


def test_program_with_another_exit_code_is_wrong(tmp_path: Path) -> None:
    result = RealResult(PROGRAMS["slow_dataset"], False, error="exit code 1, expected 0")
    assert (result.outcome, result.shown) == ("wrong", "exit code 1, expected 0")


def test_name_that_no_program_has_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--real", "--name", "no such program"]) == 1
    assert "no program has a name with 'no such program'" in capsys.readouterr().out
