"""The comparison of outcomes with those that the tests expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.findings.finding import Finding

from . import __main__ as program
from . import bar
from .families import FAMILIES


def reports_slow_input(_: Any) -> list[Finding]:
    return [Finding("INPUT_BOUND", "warning", 1, 0.1, "A sentence.", phase="data_load")]


def test_one_small_case_of_each_family_is_scored() -> None:
    few = [FAMILIES[0], next(each for each in FAMILIES if each.kind == "healthy")]
    found = bar.outcomes(reports_slow_input, few)
    assert found == {few[0].name: "right first", few[1].name: "false alarm"}
    sizes = [few[0].build(seed).plan for seed in range(3)]
    small = few[0].build(bar.small_seed(few[0])).plan
    assert small.ranks * small.units <= max(each.ranks * each.units for each in sizes)


def test_only_worse_outcomes_are_reported() -> None:
    expected: dict[str, Any] = {
        "a": "right first", "b": "right second", "c": "silent", "d": "right first", "e": "wrong",
    }  # fmt: skip
    found: dict[str, Any] = {
        "a": "right first", "b": "wrong", "c": "wrong", "d": "right second", "e": "right first",
        "new": "silent",
    }  # fmt: skip
    assert bar.worse(expected, found) == {
        "b": "wrong instead of right second",
        "d": "right second instead of right first",
        "new": "silent, none expected: run with --write-bar",
    }


def test_bar_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar, "BAR", tmp_path / "bar.json")
    monkeypatch.setattr(program, "outcomes", lambda _: {"healthy, DDP": "right first"})
    assert program.main(["--write-bar"], reports_slow_input) == 0
    assert bar.read_bar() == {"healthy, DDP": "right first"}
