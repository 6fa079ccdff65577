"""The table on the page about verdicts, and the program that prints the scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.findings.finding import Finding

from . import __main__ as program
from . import page
from .families import FAMILIES
from .scoring import Score

FEW = FAMILIES[:3]


def scores(first: int) -> dict[str, Score]:
    found = {}
    for each in FEW:
        score = found[each.name] = Score()
        score.outcomes.update({"right first": first, "wrong": 10 - first})
        score.cases = 10
    return found


def test_first_scores_stay() -> None:
    empty = f"# Verdicts\n\n{page.BEGIN}\n{page.END}\n\nThe end.\n"
    once = page.updated(empty, page.table(FEW, scores(4), page.first_scores(empty)))
    twice = page.updated(once, page.table(FEW, scores(9), page.first_scores(once)))
    assert f"| {FEW[0].name} | `INPUT_BOUND` | 4/10 | 4/10 |  | 6 |  |  |" in once
    assert f"| {FEW[0].name} | `INPUT_BOUND` | 4/10 | 9/10 |  | 1 |  |  |" in twice
    assert "| all |  | 12/30 | 27/30 |  | 3 |  |  |" in twice
    assert twice.startswith("# Verdicts\n\n")
    assert twice.endswith("\n\nThe end.\n")
    assert page.updated(twice, page.table(FEW, scores(9), page.first_scores(twice))) == twice


def test_first_total_has_new_families() -> None:
    """A family that is new has its score of now as its first one, also in the total."""
    begin = f"{page.BEGIN}\n{page.END}"
    once = page.updated(begin, page.table(FEW[:2], scores(4), page.first_scores(begin)))
    twice = page.updated(once, page.table(FEW, scores(9), page.first_scores(once)))
    assert "| all |  | 8/20 | 8/20 |  | 12 |  |  |" in once
    assert "| all |  | 17/30 | 27/30 |  | 3 |  |  |" in twice


def test_page_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="not found"):
        page.updated("# Verdicts\n", [])


def test_the_page_has_the_markers() -> None:
    text = page.PAGE.read_text()
    assert text.index(page.BEGIN) < text.index(page.END)


def test_program_prints_scores_and_failing_cases(capsys: pytest.CaptureFixture[str]) -> None:
    def reports_slow_input(*_: Any) -> list[Finding]:
        return [Finding("INPUT_BOUND", "warning", 1, 0.1, "A sentence.", phase="data_load")]

    assert (
        program.main(["--family", "input bound, DDP on", "--seeds", "2"], reports_slow_input) == 0
    )
    assert program.main(["--family", "healthy, one rank, few", "--seeds", "1"],
                        reports_slow_input) == 0  # fmt: skip
    text = capsys.readouterr().out
    assert "input bound, DDP on devices                              2/2" in text
    assert "right first 100.0%" in text
    assert "false alarm: {" in text
    assert 'found    [{"kind": "INPUT_BOUND", "severity": "warning"' in text


def test_program_reports_an_exception_of_the_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: Any) -> list[Finding]:
        raise ZeroDivisionError("no units")

    assert program.main(["--family", "healthy, DDP, few", "--seeds", "1"], fails) == 0
    text = capsys.readouterr().out
    assert "wrong: {" in text
    assert "ZeroDivisionError: no units" in text


def test_program_rejects_an_unknown_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--family", "no such family"], lambda *_: []) == 1
    assert "no family has a name with 'no such family'" in capsys.readouterr().out


def test_program_writes_the_page_only_for_all_families(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        program.main(["--family", "healthy", "--write-docs"], lambda *_: [])
    with pytest.raises(SystemExit):
        program.main(["--seeds", "1", "--write-docs"], lambda *_: [])
