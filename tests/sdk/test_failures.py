"""What fails has ERROR up to the session; what is caught has not. Real processes, really killed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.spool.paths import find_spool
from cirron_otel.spool.reader import SpoolReader
from cirron_otel.spool.recovery import recover
from cirron_otel.spool.run_report import RunReport, report_run, run_index
from cirron_otel.spool.summary import summarise
from cirron_otel.spool.tree import TreeNode, build_trees

from .processes import start

NAN = "ValueError: loss is nan"
TERMINATED = "killed: the process was ended by SIGTERM"
WAYS = {
    "body": ("failed", NAN, 1),
    "scope": ("failed", NAN, 1),
    "finally": ("failed", NAN, 1),
    "exit code": ("failed", NAN, 3),
    "hook": ("failed", NAN, 1),
    "SIGTERM": ("killed", TERMINATED, -15),
    "SIGKILL": ("killed", "incomplete: the process ended without closing this scope", -9),
    "caught": ("closed", None, 0),
    "interrupt": ("closed", None, -2),
    "break": ("closed", None, 0),
}
WITH_TORCH = {way: WAYS[way] for way in ("body", "caught", "SIGTERM")} | {
    "after the step": ("failed", NAN, 1),
    "forward": ("failed", "RuntimeError: mat1 and mat2 shapes cannot be multiplied", 1),
}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, str]]:
    return ended(tmp_path_factory.mktemp("failures"), WAYS, "by hand")


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, str]]:
    pytest.importorskip("torch")
    return ended(tmp_path_factory.mktemp("failures"), WITH_TORCH, "torch")


def ended(folder: Path, ways: Any, loop: str) -> dict[str, tuple[Path, int, str]]:
    """The folder, exit code and stderr of a process for each way, all at once."""
    folders = {way: folder / way.replace(" ", "-") for way in ways}
    processes = {
        way: start("failing", folders[way], way, loop, stderr=subprocess.PIPE) for way in ways
    }
    errors = {way: process.communicate(timeout=240)[1] for way, process in processes.items()}
    return {way: (folders[way], processes[way].returncode, errors[way]) for way in ways}


def path_of(folder: Path) -> list[TreeNode]:
    """The session, its last epoch, and the last step of that."""
    [session] = build_trees(SpoolReader(folder)).trees
    epoch = session.children[-1]
    return [session, epoch, epoch.children[-1]]


def states(folder: Path) -> list[str]:
    return [session.state for session in summarise(SpoolReader(folder)).sessions]


def report_of(folder: Path) -> RunReport:
    reader = SpoolReader(folder)
    with run_index(reader) as index:
        return report_run(index, 0, reader)


def check(way: str, ran: tuple[Path, int, str], expected: tuple[str, str | None, int]) -> None:
    folder, code, error = ran
    state, message, expected_code = expected
    assert code == expected_code, error
    assert states(folder) == [state]
    if way == "SIGKILL":
        recover(find_spool(folder))
        assert states(folder) == [state]
    path = path_of(folder)
    if message is None:
        assert [node.error for node in path] == [None] * 3
        assert report_of(folder).failures == []
        return
    if way == "forward":
        assert all("cannot be multiplied" in (node.error or "") for node in path)
    else:
        assert [node.error for node in path] == [message] * 3
    [failure] = report_of(folder).failures
    assert (failure.state, failure.epoch, failure.rank) == (state, "0", 0)
    assert failure.step == path[2].index
    assert failure.last_loss == pytest.approx(1 / 5 if way == "forward" else 1 / 6)
    if way == "SIGKILL":
        return
    assert failure.where is not None
    assert "failing.py:" in failure.where
    for span in spans(folder):
        if span["name"] in ("cirron.session", "epoch") and span["otel"].get("status"):
            [event] = span["otel"]["events"]
            assert event["name"] == "exception"
            assert event["attributes"]["exception.stacktrace"]


def spans(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "spool").glob("*.json"))
    return [span for file in files for span in json.loads(file.read_text())["spans"]]


@pytest.mark.parametrize("way", WAYS)
def test_loops_by_hand(by_hand: dict[str, tuple[Path, int, str]], way: str) -> None:
    check(way, by_hand[way], WAYS[way])
    if way in ("body", "finally"):
        assert "ValueError: loss is nan" in by_hand[way][2]
    if way == "hook":
        assert "the program's own hook" in by_hand[way][2]


@pytest.mark.torch
@pytest.mark.parametrize("way", WITH_TORCH)
def test_loops_over_a_loader(with_torch: dict[str, tuple[Path, int, str]], way: str) -> None:
    check(way, with_torch[way], WITH_TORCH[way])


def test_a_session_is_open_while_its_process_lives(tmp_path: Path) -> None:
    process = start("failing", tmp_path, "waits", "by hand", stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "flushed\n"
    [session] = summarise(SpoolReader(tmp_path)).sessions
    assert (session.state, session.pids, session.ranks) == ("open", [process.pid], [0])
    process.kill()
    process.wait()
    assert states(tmp_path) == ["killed"]
