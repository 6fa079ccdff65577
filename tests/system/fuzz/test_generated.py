"""The fixed part of the generated cases: `make fuzz` runs many more, and others each time."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.kit.generators import conversions as generated

COUNT = 120


def test_a_fixed_part_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "_CASES_AT_ONCE", 25)
    counts = generated.run(COUNT, 17)
    assert counts["batches"] + counts["messages"] >= COUNT
    assert counts["small"] >= counts["cases"] * 0.6
    for kind in ("json", "split", "twice", "batches", "messages"):
        assert counts[kind] > counts["cases"] // 10, kind


def test_failing_case_is_saved_and_reproducible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A decoder that loses every batch that came twice."""
    seen: list[generated.Case] = []

    def check(case: generated.Case) -> None:
        seen.append(case)
        assert not case.twice, "lost"

    monkeypatch.setattr(generated, "check", check)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert generated.main(["--count", "50", "--seed", "3"]) == 1
    (kept,) = tmp_path.iterdir()
    assert str(kept) in capsys.readouterr().err
    with pytest.raises(AssertionError, match="lost"):
        generated.main([str(kept)])
    assert seen[-1].pieces == 0, "made smaller"
    first = list(seen)
    seen.clear()
    assert generated.main(["--count", "50", "--seed", "3"]) == 1
    assert seen == first[: len(seen)], "the same cases each time"
