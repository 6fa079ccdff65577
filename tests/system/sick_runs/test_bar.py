"""The comparison of outcomes with those that the tests expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.findings.finding import Finding

from . import __main__ as program
from . import bar
from .bar import Scored
from .families import FAMILIES


def reports_slow_input(*_: Any) -> list[Finding]:
    return [Finding("INPUT_BOUND", "warning", 1, 0.1, "A sentence.", phase="data_load")]


def test_one_small_case_of_each_family_is_scored() -> None:
    few = [FAMILIES[0], next(each for each in FAMILIES if each.kind == "healthy")]
    found = bar.scores(reports_slow_input, few)
    assert {name: each.outcome for name, each in found.items()} == {
        few[0].name: "right first", few[1].name: "false alarm",
    }  # fmt: skip
    assert found == bar.scores(reports_slow_input, few)
    sizes = [few[0].build(seed).plan for seed in range(3)]
    small = bar.small_case(few[0]).plan
    assert small.ranks * small.units == min(each.ranks * each.units for each in sizes)


def test_digest_changes_with_the_case_and_its_truth() -> None:
    case, other = FAMILIES[0].build(0), FAMILIES[0].build(1)
    before = bar.digest_of(case)
    assert before == bar.digest_of(FAMILIES[0].build(0)) != bar.digest_of(other)
    case.expected = []
    assert bar.digest_of(case) != before


def test_only_worse_outcomes_and_changed_cases_are_reported() -> None:
    expected = {
        "a": Scored("right first", "1"), "b": Scored("right second", "1"),
        "c": Scored("silent", "1"), "d": Scored("right first", "1"), "e": Scored("wrong", "1"),
        "f": Scored("right first", "1"), "old": Scored("wrong", "1"),
    }  # fmt: skip
    found = {
        "a": Scored("right first", "1"), "b": Scored("wrong", "1"), "c": Scored("wrong", "1"),
        "d": Scored("right second", "1"), "e": Scored("right first", "1"),
        "f": Scored("right first", "2"), "new": Scored("silent", "1"),
    }  # fmt: skip
    assert bar.worse(expected, found) == {
        "b": "wrong instead of right second",
        "d": "right second instead of right first",
        "f": "its case has changed",
        "new": "not expected: run with --write-bar",
        "old": "the family is gone",
    }


def test_bar_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"healthy, DDP": Scored("right first", "1"), "other": Scored("silent", "2")}
    monkeypatch.setattr(bar, "BAR", tmp_path / "bar.json")
    monkeypatch.setattr(program, "bar_scores", lambda _: wanted)
    assert program.main(["--write-bar"], reports_slow_input) == 0
    assert bar.read_bar() == wanted
