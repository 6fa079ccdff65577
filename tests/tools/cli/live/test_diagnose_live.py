"""`diagnose --live` follows a real job: findings appear, change and end while it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.run.findings.thresholds import KINDS
from tests.core.analysis.verdicts.growing import SLOW, GrowingSpool
from tests.kit.sessions.processes import ROOT, environment, running, until

JOB = [sys.executable, "tests/tools/cli/live/job.py"]
LIVE = [sys.executable, "-m", "cirron_otel", "diagnose", "--live"]
Event = dict[str, Any]


def watch(process: subprocess.Popen[str], seen: Path) -> list[Event]:
    """Create a file in `seen` for each finding that appears or ends; return all events.

    The job waits for these files, so a follower that ends ahead of the job is an error.
    """
    events: list[Event] = []
    assert process.stdout is not None
    for line in process.stdout:
        events.append(event := json.loads(line))
        if "finding" in event and is_of_the_job(event["finding"]):
            kind = event["finding"]["kind"]
            if event["event"] == "appeared" or (seen / f"appeared {kind}").exists():
                (seen / f"{event['event']} {kind}").touch()
    return events


def is_of_the_job(finding: dict[str, Any]) -> bool:
    """Whether it is the stall of the job itself: on a busy machine, a step may take as long."""
    return finding["kind"] != "STALLED" or finding["scope"] == "exchange"


def of_kind(events: list[Event], kind: str, event: str) -> list[dict[str, Any]]:
    return [
        each["finding"] for each in events
        if each["event"] == event and each["finding"]["kind"] == kind
        and is_of_the_job(each["finding"])
    ]  # fmt: skip


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The events of the job, from its start to its end."""
    spool, seen = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("seen")
    (spool / "spool").mkdir()
    with running([*JOB, str(spool), str(seen)]) as job:
        until(lambda: list(spool.glob("state/owner-*.lock")) or job.poll() is not None)
        command = [*LIVE, str(spool), "--json", "--window", "20", "--fail-on", "failure"]
        with running(command, stdout=subprocess.PIPE) as follower:
            found = watch(follower, seen)
            assert follower.wait(60) == 6
        assert job.wait(60) == -signal.SIGKILL
    return found


def test_slow_input_appears_and_ends(events: list[Event]) -> None:
    appeared, ended = (of_kind(events, "INPUT_BOUND", each) for each in ("appeared", "ended"))
    assert {each["id"] for each in ended} <= {each["id"] for each in appeared}
    assert ended
    assert appeared[0]["phase"] == "data_load"
    assert appeared[0]["severity"] in ("warning", "critical")
    assert "Loading (data_load) takes " in appeared[0]["sentence"]


def test_a_stall_names_the_open_scope_and_ends(events: list[Event]) -> None:
    stall = of_kind(events, "STALLED", "appeared")[0]
    assert (stall["severity"], stall["cost_ns"]) == ("failure", None)
    assert stall["evidence"]["open_scopes"][-2:] == ["step", "exchange"]
    assert "the innermost open scope is exchange" in stall["sentence"]
    assert of_kind(events, "STALLED", "ended")


def test_a_loss_that_is_not_finite_appears(events: list[Event]) -> None:
    finding = of_kind(events, "NON_FINITE", "appeared")[0]
    assert finding["severity"] == "critical"
    assert finding["steps"][0][0] > 40  # numbered over the whole run, not over the window


def test_the_killed_job_ends_the_command(events: list[Event]) -> None:
    assert of_kind(events, "KILLED", "appeared")
    last = events[-1]
    assert (last["event"], last["status"]) == ("run_ended", "failed")
    assert [each["event"] for each in events].count("run_ended") == 1
    assert len({json.dumps(each["run"]) for each in events}) == 1


def test_findings_are_those_of_the_document(events: list[Event]) -> None:
    for each in events[:-1]:
        assert set(each) == {"run", "time_ns", "event", "units", "finding"}
        assert each["finding"]["kind"] in KINDS
        assert each["event"] in ("appeared", "changed", "ended")


def test_the_text(tmp_path: Path) -> None:
    """A run that has ended is diagnosed once, with the sentences of `diagnose`."""
    spool = GrowingSpool(tmp_path, world_size=1)
    for _ in range(10):
        spool.write(5, SLOW)
    spool.end()
    found = command(tmp_path, "--live")
    assert found.returncode == 0
    lines = found.stdout.splitlines()
    assert lines[0].startswith("run ")
    assert lines[1].endswith(" appeared:")
    assert lines[2].startswith("CRITICAL INPUT_BOUND: 500 ms")
    assert " the run has ended: CRITICAL: Loading (data_load) takes 10 ms" in lines[-1]
    whole = command(tmp_path).stdout
    assert "Loading (data_load) takes 10 ms of each 20 ms step" in " ".join(whole.split())
    assert lines[-2] in whole


@pytest.mark.parametrize(
    ("fail_on", "code"), [("notice", 2), ("warn", 6), ("critical", 6), ("failure", 0)]
)
def test_fail_on(tmp_path: Path, fail_on: str, code: int) -> None:
    spool = GrowingSpool(tmp_path, world_size=1)
    for _ in range(10):
        spool.write(5, SLOW)
    spool.end()
    assert command(tmp_path, "--live", "--fail-on", fail_on).returncode == code


def command(spool: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "cirron_otel", "diagnose", str(spool), *options]
    return subprocess.run(
        words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
