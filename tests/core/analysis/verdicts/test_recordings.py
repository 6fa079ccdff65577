"""Recordings of TraceML's get the verdicts that the rules of its page give: the same kinds,
severities, and scores or shares to three digits.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.cli.main import run as run_command
from tests.core.importers.traceml.recordings import RECORDINGS, run_folder

# (kind, severity, score or share, ranks), the primary verdict first.
EXPECTED: dict[str, list[tuple[str, str, float | None, list[int]]]] = {
    "v031/ddp2_compute_straggler": [
        ("COMPUTE_STRAGGLER", "crit", 0.29727805710626554, [1]),
        ("HIGH_CPU", "warn", 0.9954433333333333, []),
    ],
    "v031/single_input_bound": [
        ("INPUT_BOUND", "crit", 2.7752241306572945, [0]),
        ("HIGH_CPU", "warn", 0.9952560975609755, []),
    ],
    "v050/ddp2_residual_straggler": [
        ("WAIT_STRAGGLER", "crit", 0.2860932304604636, [1]),
        ("WAIT_HEAVY", "crit", 0.31436584076186946, [1]),
        ("HIGH_CPU", "warn", 0.8122122186495181, []),
    ],
    "v050/ddp2_short": [
        ("WARMUP", "info", None, []),
        ("HIGH_CPU", "warn", 0.9795918367346938, []),
    ],
}  # fmt: skip


RULES = ("--rules", "traceml")


def diagnosed(source: str, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run_command(["diagnose", *RULES, source, "--json", *options]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert isinstance(run, dict)
    return run


def check(run: dict[str, Any], recording: str, but: Collection[str] = ()) -> None:
    """Check the verdicts, except for the kinds in `but`."""
    expected = [each for each in EXPECTED[recording] if each[0] not in but]
    verdicts = [
        (each["kind"], each["severity"], each.get("score", each.get("share")), each["ranks"])
        for each in run["verdicts"]
    ]
    assert [(k, s, r) for k, s, _, r in verdicts] == [(k, s, r) for k, s, _, r in expected]
    for (*_, found, _), (*_, value, _) in zip(verdicts, expected, strict=True):
        assert found == (value if value is None else pytest.approx(value, abs=5e-4))
    assert run["primary"] == expected[0][0]
    assert run["other_runs"] == []


@pytest.mark.parametrize("recording", EXPECTED)
def test_frames(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = diagnosed(f"traceml:{RECORDINGS / recording / 'frames'}", capsys)
    check(run, recording)
    assert run["ranks"] == ([0] if "single" in recording else [0, 1])
    assert run["window"] == {
        "policy": "run", "clock": "host", "steps": 10 if "short" in recording else 300,
        "summarised": 0,
        "first": {"epoch": None, "step": "1"},
        "last": {"epoch": None, "step": "10" if "short" in recording else "300"},
    }  # fmt: skip


@pytest.mark.parametrize("recording", EXPECTED)
def test_a_spool_and_otlp(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, spool = f"traceml:{RECORDINGS / recording / 'frames'}", tmp_path / "spool-of-run"
    assert run_command(["convert", source, str(spool), "--to", "spool"]) == 0
    check(diagnosed(str(spool), capsys), recording)
    for name in ("run.otlp.json", "run.otlp.binpb"):
        assert run_command(["convert", str(spool), str(tmp_path / name)]) == 0
        check(diagnosed(str(tmp_path / name), capsys), recording)


@pytest.mark.parametrize("recording", EXPECTED)
def test_a_history_and_a_run_folder(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(recording, tmp_path)
    check(diagnosed(f"traceml:{folder}", capsys), recording)
    check(diagnosed(f"traceml:{folder / 'aggregator' / 'telemetry'}", capsys), recording)


@pytest.mark.parametrize("recording", EXPECTED)
def test_a_summary(recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The means of a summary suffice for the verdicts on the steps."""
    folder = run_folder(recording, tmp_path)
    run = diagnosed(f"traceml:{folder / 'final_summary.json'}", capsys)
    run["verdicts"] = [each for each in run["verdicts"] if each["kind"] != "HIGH_CPU"]
    check(run, recording, but={"HIGH_CPU"})
    steps = 10 if "short" in recording else 300
    assert run["window"] == {
        "policy": "run", "clock": "host", "steps": steps, "summarised": 0, "first": None,
        "last": None,
    }  # fmt: skip


def test_two_recordings_in_one_spool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs without an id are told apart by the time of their ranks, others by their stamp."""
    for recording in EXPECTED:
        frames = RECORDINGS / recording / "frames"
        assert run_command(["convert", f"traceml:{frames}", str(tmp_path), "--to", "spool"]) == 0
    capsys.readouterr()
    assert run_command(["diagnose", *RULES, str(tmp_path), "--json", "--run", "all"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert sorted(each["primary"] for each in runs) == sorted(e[0][0] for e in EXPECTED.values())
    assert all(len(each["other_runs"]) == 3 for each in runs)
    assert run_command(["diagnose", *RULES, str(tmp_path)]) == 0
    line = capsys.readouterr().err
    assert "4 runs; this is the last, " in line
    names = line.partition(" selects others: ")[2].strip().split(", ")
    assert len(names) == 3
    for name in names:
        assert run_command(["diagnose", *RULES, str(tmp_path), "--run", name]) == 0
    capsys.readouterr()
    assert run_command(["diagnose", *RULES, str(tmp_path), "--run", "other"]) == 2
    line = capsys.readouterr().err
    assert "no run has the name or id 'other': the runs are " in line
    assert all(name in line for name in names)
    assert "runs ls" not in line


@pytest.mark.parametrize("ms", [-1.0, 1e308])
def test_times_of_a_summary_that_are_not_valid(
    ms: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_folder("v050/ddp2_residual_straggler", tmp_path) / "final_summary.json"
    summary = json.loads(path.read_bytes())
    metrics = summary["step_time"]["groups"]["rows"]["1"]["metrics"]
    metrics |= {name: ms for name, value in metrics.items() if value is not None}
    path.write_text(json.dumps(summary))
    run = diagnosed(f"traceml:{path}", capsys)
    assert run["ranks"] == [0]
    assert run_command(["diagnose", *RULES, f"traceml:{path}"]) == 0
    assert "internal error" not in capsys.readouterr().err
