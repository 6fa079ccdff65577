"""`diff`: two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import cirron_otel as ci
from tests.kit.sessions.opened import opened
from tests.tools.conftest import SPOOLS, Run, one_line

FIRST, SECOND = SPOOLS / "01_torch_basic", SPOOLS / "11_diverged_nan"


def test_two_runs(run: Run) -> None:
    result = run("diff", FIRST, SECOND)
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert lines[0] == f"A  {FIRST}: 24 steps of 1 rank"
    assert lines[1] == f"B  {SECOND}: 12 steps of 1 rank"
    rows = [line.split("  ") for line in lines]
    cells = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows if row}
    assert cells["backward"] == ["24", "12", "95.7 µs", "201 µs", "+110.6 %"]
    assert cells["clip"] == ["24", "0", "101 µs", "-", "-"]
    assert cells["loss"] == ["0", "1.39413", "nan"]


def test_diff_document_matches_the_two_reports(run: Run) -> None:
    document = json.loads(run("diff", FIRST, SECOND, "--json").stdout)
    reports = [json.loads(run("report", each, "--json").stdout) for each in (FIRST, SECOND)]
    for key, report in zip("ab", reports, strict=True):
        of_report = {each["name"]: each for each in report["ranks"][0]["phases"]}
        for phase in document["phases"][:-2]:
            expected = of_report.get(phase["name"])
            if expected is None:
                assert phase[key] is None
            else:
                assert phase[key] == {name: expected[name] for name in phase[key]}
                assert list(phase[key])[:3] == ["times", "total_ns", "median_ns"]
    step = document["phases"][-1]
    assert step["name"] == "step"
    assert (
        step["change"] == (step["b"]["median_ns"] - step["a"]["median_ns"]) / step["a"]["median_ns"]
    )
    assert document["marks"] == [
        {"name": "loss", "rank": 0, "is_eval": False, "a": "1.394134283065796", "b": "nan"}
    ]


def test_marks_of_evaluations_are_compared_with_each_other(run: Run, tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        with opened(tmp_path / name), ci.scope("epoch", 0):
            with ci.scope("step", 0):
                ci.mark("loss", value)
            if name == "a":
                ci.mark("accuracy", value)
            with ci.scope("eval"):
                ci.mark("loss", 10 * value)
                ci.mark("accuracy", 10 * value)
    sides = tmp_path / "a", tmp_path / "b"
    document = json.loads(run("diff", *sides, "--json").stdout)
    assert document["marks"] == [
        {"name": "accuracy", "rank": 0, "is_eval": True, "a": "10.0", "b": "20.0"},
        {"name": "loss", "rank": 0, "is_eval": False, "a": "1.0", "b": "2.0"},
        {"name": "loss", "rank": 0, "is_eval": True, "a": "10.0", "b": "20.0"},
    ]
    lines = run("diff", *sides).stdout.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith(("accuracy", "loss"))] == [
        ["accuracy", "(eval)"], ["loss", "0"], ["loss", "(eval)"],
    ]  # fmt: skip


def test_a_run_beside_itself_in_another_form(run: Run, spool: Path) -> None:
    assert run("convert", ".cirron", "run.jsonl").returncode == 0
    document = json.loads(run("diff", ".cirron", "run.jsonl", "--json").stdout)
    assert [phase["change"] for phase in document["phases"]] == [0.0] * 7
    assert all(mark["a"] == mark["b"] for mark in document["marks"])


def test_runs_with_other_units(run: Run) -> None:
    ranks = SPOOLS / "07_ranks"
    result = run("diff", ranks, FIRST)
    assert result.returncode == 0
    assert f"A  {ranks}: 80 batches of 6 ranks\n" in result.stdout
    assert run("diff", ranks, ranks).returncode == 0


def test_problems_of_either_input_are_reported(run: Run) -> None:
    assert "nowhere" in one_line(run("diff", FIRST, "nowhere"), 3)
    assert "nowhere" in one_line(run("diff", "nowhere", FIRST), 3)
    killed = run("diff", FIRST, SPOOLS / "23_sigkill_plus_stray_tmp", "--json")
    assert killed.returncode == 1
    document = json.loads(killed.stdout)
    assert [problem["code"] for problem in document["b"]["skipped"]] == ["torn"]
    assert document["a"]["skipped"] == []


def test_one_of_them_may_be_standard_input(run: Run, spool: Path, tmp_path: Path) -> None:
    assert run("convert", ".cirron", "run.jsonl").returncode == 0
    data = (tmp_path / "run.jsonl").read_bytes()
    for pair in ((".cirron", "-"), ("-", ".cirron")):
        result = run("diff", *pair, "--from", "otlp-json", "--json", stdin=data)
        assert result.returncode == 0
        document = json.loads(result.stdout)
        assert document["a"]["steps"] == document["b"]["steps"] == 24
    assert "only one" in one_line(run("diff", "-", "-", "--from", "otlp-json", stdin=data), 2)
