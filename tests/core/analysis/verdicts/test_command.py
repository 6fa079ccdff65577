"""`cirron-otel diagnose --rules traceml`: output, exit codes, runs, and bad input."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.verdicts.verdict import HEALTHY
from cirron_otel.tools.cli.main import run as run_command

from .records import (
    MS,
    START,
    Rank,
    write_spool,
)

Run = Callable[..., subprocess.CompletedProcess[str]]
SLOW_INPUT = {"data_load": 5, "forward": 3, "backward": 4, "optimizer_step": 1}
WARM_INPUT = SLOW_INPUT | {"data_load": 2.6}
HEALTH = {"data_load": 1, "forward": 3, "backward": 4, "optimizer_step": 1}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> subprocess.CompletedProcess[str]:
        code = run_command(["diagnose", "--rules", "traceml", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return subprocess.CompletedProcess(words, code, out, err)

    return call


def job(phases: dict[str, Any], ranks: int = 2, steps: int = 60) -> list[Rank]:
    made = []
    for rank in range(ranks):
        records = Rank(rank, pid=rank + 1)
        for number in range(steps):
            records.step(number, phases)
        made.append(records)
    return made


def test_the_text(run: Run, tmp_path: Path) -> None:
    write_spool(tmp_path, job(SLOW_INPUT | {"augment": 2}))
    done = run(tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].endswith(": 60 aligned steps (step 0 to step 59) of 2 ranks, host clock")
    assert lines[2].startswith("INPUT_BOUND (crit, rank 0): loading takes 5 ms per step, 50.0 % of")
    assert any(line.startswith("  try: more workers") for line in lines)
    assert re.search(r"^phase +rank 0 +median +worst +rank$", done.stdout, re.MULTILINE)
    assert re.search(r"^augment \(scope\) +2 ms +2 ms +2 ms +0$", done.stdout, re.MULTILINE)
    assert "\nNot assessed:\n" in done.stdout
    assert "HIGH_PRESSURE, IMBALANCE, CREEP: no step has a peak of device memory" in done.stdout
    assert done.stderr == ""


def test_the_document(run: Run, tmp_path: Path) -> None:
    write_spool(tmp_path, job(SLOW_INPUT))
    document = json.loads(run(tmp_path, "--json").stdout)
    assert set(document) == {"source", "runs", "findings"}
    [found] = document["runs"]
    assert set(found) == {
        "run", "other_runs", "ranks", "window", "primary", "verdicts", "phases", "not_assessed",
    }  # fmt: skip
    assert found["primary"] == "INPUT_BOUND"
    verdict = found["verdicts"][0]
    assert set(verdict) == {
        "kind", "severity", "share", "ranks", "phase", "evidence", "why", "next",
    }  # fmt: skip
    assert verdict["share"] == pytest.approx(5 / 8)
    slow = [*job(HEALTH, 1), Rank(1, pid=2)]
    for number in range(60):
        slow[1].step(number, HEALTH | {"forward": 20})
    write_spool(tmp_path / "slow", slow)
    [found] = json.loads(run(tmp_path / "slow", "--json").stdout)["runs"]
    verdict = found["verdicts"][0]
    assert "score" in verdict
    assert "share" not in verdict
    assert {each["rule"] for each in found["not_assessed"]} >= {"HIGH_PRESSURE", "GPU_HOT"}


@pytest.mark.parametrize(
    ("phases", "fail_on", "code"),
    [
        (SLOW_INPUT, "warn", 6), (SLOW_INPUT, "crit", 6),
        (WARM_INPUT, "warn", 6), (WARM_INPUT, "crit", 0),
        (HEALTH, "warn", 0), (HEALTH, "crit", 0),
    ],
)  # fmt: skip
def test_fail_on(run: Run, tmp_path: Path, phases: dict[str, Any], fail_on: str, code: int) -> None:
    """A healthy job is COMPUTE_BOUND with the severity `crit`, which is no failure."""
    write_spool(tmp_path, job(phases))
    done = run(tmp_path, "--json", "--fail-on", fail_on)
    assert done.returncode == code
    primary = json.loads(done.stdout)["runs"][0]["primary"]
    assert (primary in HEALTHY) == (phases is HEALTH)
    assert run(tmp_path).returncode == 0


def test_the_window_and_thresholds(run: Run, tmp_path: Path) -> None:
    write_spool(tmp_path, job(WARM_INPUT))
    [found] = json.loads(run(tmp_path, "--json", "--window", "55").stdout)["runs"]
    assert found["window"]["steps"] == 55
    assert found["window"]["first"] == {"epoch": None, "step": "5"}
    [found] = json.loads(run(tmp_path, "--json", "--set", "input.crit=0.32").stdout)["runs"]
    assert found["verdicts"][0]["severity"] == "crit"
    few = json.loads(run(tmp_path, "--json", "--window", "10", "--set", "warmup.steps=10").stdout)
    assert few["runs"][0]["primary"] == "INPUT_BOUND"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "nonsense=1"), "no threshold has the name 'nonsense'"),
        (("--set", "input.warn"), "expected NAME=VALUE"),
        (("--set", "input.warn=much"), "expected a number"),
        (
            ("--set", "input.warn=0.5"),
            "input.warn is 0.5, which is above input.crit, 0.4: set both",
        ),
        (("--set", "wait.crit=0.1"), "wait.warn is 0.18, which is above wait.crit, 0.1: set both"),
        (("--window", "0"), "Invalid value for '--window'"),
        (("--window", "9" * 30), "expected a whole number of steps from 1 to 1,000,000,000"),
        (("--set", "window.steps=1e30"), "window.steps='1e30': expected a whole number"),
        (("--set", "warmup.steps=1e300"), "warmup.steps='1e300': expected a whole number"),
        (("--fail-on", "info"), "Invalid value for '--fail-on'"),
        (("--run", "nobody"), "no run has the name or id 'nobody'"),
    ],
)
def test_wrong_usage(run: Run, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    write_spool(tmp_path, job(HEALTH))
    done = run(tmp_path, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bad_input(run: Run, tmp_path: Path) -> None:
    assert run(tmp_path / "nothing").returncode == 3
    write_spool(tmp_path, job(SLOW_INPUT))
    (tmp_path / "spool" / f"{START + 9:020d}-{'a' * 32}.json").write_text('{"spans": [')
    done = run(tmp_path, "--json")
    assert done.returncode == 1
    assert "skipped: " in done.stderr
    document = json.loads(done.stdout)
    assert len(document["findings"]) == 1
    assert document["runs"][0]["primary"] == "INPUT_BOUND"
    assert run(tmp_path, "--fail-on", "crit").returncode == 6


def test_an_empty_spool(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    done = run(tmp_path)
    assert done.returncode == 0
    assert "WARMUP (info): 0 steps are common to all ranks" in done.stdout


def test_names_are_printable(run: Run, tmp_path: Path) -> None:
    hostile = "a\x1b[31m\nb\u202e" + "x" * 400
    write_spool(tmp_path, job(HEALTH | {hostile: 50}))
    done = run(tmp_path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


def test_the_report_prints_the_verdicts_too(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_spool(tmp_path, job(SLOW_INPUT))
    for options in ([], ["--json"]):
        expected = run(tmp_path, *options).stdout
        assert run_command(["report", str(tmp_path), "--rules", "traceml", *options]) == 0
        assert capsys.readouterr().out == expected
    assert run_command(["report", str(tmp_path), "--rules", "traceml", "--full"]) == 2


def test_uneven_ranks(run: Run, tmp_path: Path) -> None:
    """Rank 1 ended early: only its steps are aligned."""
    ranks = job(SLOW_INPUT, 1) + job(SLOW_INPUT, 2, steps=52)[1:]
    write_spool(tmp_path, ranks)
    [found] = json.loads(run(tmp_path, "--json").stdout)["runs"]
    assert (found["ranks"], found["window"]["steps"]) == ([0, 1], 52)


def foreign(folder: Path, rank: int, world: int, *, begin_s: int = 0, host: str = "a") -> None:
    """Write a session of other software, of 60 steps, without an id of its run."""
    records = Rank(rank, pid=rank + 1, start=START + begin_s * 1000 * MS)
    records.session = f"{host}{rank}.{begin_s}"
    for number in range(60):
        records.step(number, SLOW_INPUT)
    spans, marks = records.records()
    session = spans[-1]["id"]
    name = f"{records.begun:020d}-{session}"
    batch = {
        "schema_version": 1, "sdk_version": "traceml", "batch_id": session,
        "created_ns": records.at, "spans": spans, "marks": marks, "snapshots": [],
        "otel": {"session": session, "resource": {"attributes": {
            "host.name": host, "cirron.world_size": world,
        }}},
    }  # fmt: skip
    (folder / "spool").mkdir(parents=True, exist_ok=True)
    (folder / "spool" / f"{name}.json").write_text(json.dumps(batch))


def test_sessions_without_an_id_of_their_run(run: Run, tmp_path: Path) -> None:
    """Ranks of one world size that overlap form a run; a restart, and other sizes, do not."""
    for rank in (0, 1):
        foreign(tmp_path, rank, 2)
        foreign(tmp_path, rank, 2, begin_s=3600)
    foreign(tmp_path, 2, 4, host="b")
    foreign(tmp_path, 0, 1, host="c")
    document = json.loads(run(tmp_path, "--json", "--run", "all").stdout)
    assert sorted(each["ranks"] for each in document["runs"]) == [[0], [0, 1], [0, 1], [2]]
    lonely = next(each for each in document["runs"] if each["ranks"] == [2])
    reasons = {each["rule"]: each["reason"] for each in lonely["not_assessed"]}
    assert reasons["STRAGGLER"] == "no step of rank 0, 1, 3 is recorded"
    last = run(tmp_path)
    assert "of 2 ranks" in last.stdout
    (line,) = last.stderr.splitlines()
    assert line.startswith("cirron-otel: 4 runs; this is the last, ")
    assert line.partition(" selects others: ")[2].count(", ") == 2
