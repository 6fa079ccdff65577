"""The five outcomes of a case, from findings as they are in a report."""

from __future__ import annotations

from typing import Any

import pytest

from cirron_otel.core.run.findings.finding import Finding

from .families import FAMILIES
from .scoring import Score, has_right_status, is_placed, outcome, result
from .truth import THRESHOLDS, Expected, is_near_threshold, severity

STRAGGLER = Expected(("INPUT_STRAGGLER",), 0.2, 0.2, "data_load", (1, 3))
CHECKPOINTS = Expected(("CHECKPOINT_HEAVY",), 0.1, 0.1)


def found(kind: str, severity: Any = "warning", **changes: Any) -> dict[str, Any]:
    """A finding as a report has it."""
    finding = Finding(kind, severity, 10, 0.1, "A sentence.")
    for name, value in changes.items():
        setattr(finding, name, value)
    return finding.to_json()


RIGHT = found("INPUT_STRAGGLER", "critical", phase="data_load", ranks=[3, 1])
OTHER = found("CHECKPOINT_HEAVY", scope="checkpoint_save")


@pytest.mark.parametrize(
    ("expected", "findings", "wanted"),
    [
        ([STRAGGLER], [RIGHT], "right first"),
        ([STRAGGLER, CHECKPOINTS], [RIGHT, OTHER], "right first"),
        ([STRAGGLER], [OTHER, RIGHT], "right second"),
        ([STRAGGLER], [OTHER, OTHER, RIGHT], "wrong"),
        ([STRAGGLER], [OTHER], "wrong"),
        ([STRAGGLER], [], "silent"),
        ([STRAGGLER], [{**RIGHT, "severity": "notice"}], "silent"),
        ([STRAGGLER], [{**OTHER, "severity": "notice"}, RIGHT], "right first"),
        ([], [], "right first"),
        ([], [{**OTHER, "severity": "notice"}], "right first"),
        ([], [OTHER], "false alarm"),
        ([], [found("FAILED", "failure")], "false alarm"),
    ],
)
def test_outcomes(expected: list[Expected], findings: list[Any], wanted: str) -> None:
    assert outcome(expected, findings) == wanted


@pytest.mark.parametrize(
    "finding",
    [
        {**RIGHT, "kind": "COMPUTE_STRAGGLER"},
        {**RIGHT, "phase": "forward"},
        {**RIGHT, "phase": None},
        {**RIGHT, "ranks": [1]},
        {**RIGHT, "ranks": []},
        {**RIGHT, "ranks": [1, 3, 4]},
    ],
)
def test_finding_with_another_kind_phase_or_rank_is_wrong(finding: dict[str, Any]) -> None:
    assert outcome([STRAGGLER], [finding]) == "wrong"


def test_own_scope_may_be_the_scope_of_a_finding() -> None:
    expected = Expected(("SPIKES",), 0.2, 0.2, "model")
    assert outcome([expected], [found("SPIKES", scope="model")]) == "right first"
    assert outcome([expected], [found("SPIKES", phase="model")]) == "right first"
    assert outcome([expected], [found("SPIKES", scope="preprocess")]) == "wrong"


def test_each_of_several_kinds_is_right() -> None:
    expected = Expected(("CREEP_CONFIRMED", "CREEP_EARLY"))
    for kind in expected.kinds:
        assert outcome([expected], [found(kind)]) == "right first"


def test_straggler_that_moves_needs_no_ranks_but_must_be_reported_as_moving() -> None:
    expected = Expected(("INPUT_STRAGGLER",), 0.2, 0.2, "data_load", moving=True)
    assert outcome([expected], [{**RIGHT, "moving": True}]) == "right first"
    assert outcome([expected], [RIGHT]) == "wrong"


def test_units_of_a_finding() -> None:
    expected = Expected(("SLOW_INTERVAL",), 0.2, 0.2, units=((100, 129),))
    assert is_placed(expected, found("SLOW_INTERVAL", steps=[(98, 130)]))
    assert not is_placed(expected, found("SLOW_INTERVAL", steps=[(0, 200)]))
    assert not is_placed(expected, found("SLOW_INTERVAL"))
    every = Expected(("SPIKES",), 0.2, 0.2, every=50)
    assert is_placed(every, found("SPIKES", every=51))
    assert not is_placed(every, found("SPIKES", every=25))
    assert not is_placed(every, found("SPIKES"))


def test_severities_follow_the_thresholds() -> None:
    warning, critical = THRESHOLDS["EVALUATION_HEAVY"]
    assert severity("EVALUATION_HEAVY", critical) == 1
    assert severity("EVALUATION_HEAVY", critical - 0.001) == 2
    assert severity("EVALUATION_HEAVY", warning - 0.001) == 3
    assert severity("FAILED", None) == 0
    assert severity("NON_FINITE", None) == 1
    assert severity("HIGH_PRESSURE", None) == 2
    assert is_near_threshold("INPUT_BOUND", 0.06)
    assert not is_near_threshold("INPUT_BOUND", 0.0625)
    assert not is_near_threshold("INPUT_BOUND", 0.04)


def test_result_compares_price_units_and_both_causes() -> None:
    case = FAMILIES[0].build(0)
    case.expected = [STRAGGLER, CHECKPOINTS]
    scored = result(case, [{**RIGHT, "share": 0.25}, OTHER])
    assert scored.outcome == "right first"
    assert scored.price_ratio == pytest.approx(1.25)
    assert scored.has_both is True
    assert scored.is_placed is None
    assert result(case, [RIGHT]).has_both is False


def test_exception_of_the_analysis_is_wrong_even_for_a_healthy_run() -> None:
    case = FAMILIES[0].build(0)
    case.expected = []
    assert result(case, [], "ValueError: no").outcome == "wrong"


def test_status_is_right_if_there_is_a_warning_exactly_in_a_sick_run() -> None:
    case = FAMILIES[0].build(0)
    case.expected = [STRAGGLER]
    assert has_right_status(result(case, [OTHER]))
    assert not has_right_status(result(case, [{**OTHER, "severity": "notice"}]))
    case.expected = []
    assert has_right_status(result(case, [{**OTHER, "severity": "notice"}]))
    assert not has_right_status(result(case, [OTHER]))
    assert not has_right_status(result(case, [], "ValueError: no"))


def test_score_adds_up() -> None:
    case = FAMILIES[0].build(0)
    score = Score()
    case.expected = [STRAGGLER]
    for findings in ([RIGHT], [OTHER, RIGHT], [OTHER], []):
        score.add(result(case, findings))
    assert score.cases == 4
    assert score.right_first == 0.25
    assert score.right_second == 0.5
    assert dict(score.outcomes) == {"right first": 1, "right second": 1, "wrong": 1, "silent": 1}
    assert Score().right_first == Score().right_second == 0.0
