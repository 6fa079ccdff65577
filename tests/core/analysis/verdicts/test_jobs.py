"""Real jobs of two ranks under the hooks, each slowed in one place, get that verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.cli.main import run as run_command
from tests.kit.forked_scripts import ForkedScripts

pytestmark = pytest.mark.torch
PROGRAM = "tests.core.analysis.verdicts.programs.slowed"
# (the primary verdict, its phase, and its ranks) by the place that is slow; _straggler: in rank 1.
CASES: dict[str, tuple[str, str, set[int]]] = {
    "input": ("INPUT_BOUND", "input", {0, 1}),
    "wait": ("WAIT_HEAVY", "wait", {0, 1}),
    "input_straggler": ("INPUT_STRAGGLER", "input", {1}),
    "forward_straggler": ("COMPUTE_STRAGGLER", "compute", {1}),
    "optimizer_straggler": ("COMPUTE_STRAGGLER", "compute", {1}),
    "wait_straggler": ("WAIT_STRAGGLER", "wait", {1}),
    "outside_straggler": ("WAIT_STRAGGLER", "wait", {1}),
    "scope_straggler": ("STRAGGLER", "augment", {1}),
}
SLOW_NS = 14_000_000
"""The time by which the program slows a place."""
HEALTHY = {"BALANCED", "COMPUTE_BOUND"}
BUSY = {"HIGH_CPU"}
"""Verdicts on the machine, which also runs other tests."""


@pytest.fixture(scope="module")
def jobs(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The spools of all cases, which one pair of processes trains in turn."""
    directory = tmp_path_factory.mktemp("jobs")
    cases = [*CASES, "healthy", "scope", "outside", "non_finite", "backward_straggler"]
    done = scripts.module(PROGRAM, directory, *cases)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory


def diagnosed(job: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    assert run_command(
        ["diagnose", str(job), "--rules", "traceml", "--json", "--fail-on", "warn"]
    ) in (code, 6)
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert (run["ranks"], run["window"]["steps"], run["window"]["clock"]) == ([0, 1], 60, "host")
    assert isinstance(run, dict)
    return run


@pytest.mark.parametrize("case", CASES)
def test_the_slow_place_is_named(jobs: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = diagnosed(jobs / case, capsys, 6)
    kind, phase, ranks = CASES[case]
    primary = run["verdicts"][0]
    assert (run["primary"], primary["kind"], primary["phase"]) == (kind, kind, phase)
    assert set(primary["ranks"]) <= ranks
    assert primary["severity"] in ("warn", "crit")


def test_a_healthy_job_gets_none(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = diagnosed(jobs / "healthy", capsys)
    assert {each["kind"] for each in run["verdicts"]} - BUSY <= HEALTHY


def test_a_scope_of_the_program_is_named(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is neither compute nor wait, so the job is healthy."""
    run = diagnosed(jobs / "scope", capsys)
    assert {each["kind"] for each in run["verdicts"]} - BUSY <= HEALTHY
    [scope] = [each for each in run["phases"] if each["is_scope"]]
    assert scope["name"] == "augment"
    assert scope["median_ns"] >= 14_000_000


def test_time_between_steps(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = diagnosed(jobs / "outside", capsys, 6)
    assert "OUTSIDE_STEPS" in {each["kind"] for each in run["verdicts"]}


def test_losses_that_are_not_finite(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = diagnosed(jobs / "non_finite", capsys, 6)
    [found] = [each for each in run["verdicts"] if each["kind"] == "NON_FINITE"]
    assert (found["ranks"], found["evidence"]["marks"]) == ([0, 1], {"loss": 120})


@pytest.mark.parametrize("engine", ["python", "duckdb"])
def test_a_rank_that_is_slow_in_backward_alone(
    jobs: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks take the same time in it; DDP's own times distinguish work from waiting."""
    run_command(["report", str(jobs / "backward_straggler"), "--json", "--engine", engine])
    document = json.loads(capsys.readouterr().out)
    first = next(each for each in document["findings"] if "STRAGGLER" in each["kind"])
    assert (first["kind"], first["phase"], first["ranks"]) == ("COMPUTE_STRAGGLER", "backward", [1])
    assert first["severity"] in ("warning", "critical")
    assert first["evidence"]["wait_ns"] == pytest.approx(SLOW_NS, rel=0.2)
    assert "COMPUTE_STRAGGLER" not in {each["kind"] for each in document["not_assessed"]}


def test_a_healthy_job_has_no_rank_that_is_as_slow(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other load on the machine may slow a rank a little."""
    run_command(["report", str(jobs / "healthy"), "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    found = [each for each in findings if "STRAGGLER" in each["kind"]]
    slow = [each for each in found if each["evidence"]["wait_ns"] > SLOW_NS / 2
            and not each["moving"] and not each["steps"]]  # fmt: skip
    assert [each["sentence"] for each in slow] == []
