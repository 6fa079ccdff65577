"""What fails has ERROR up to the session; what is caught has not. Real processes, really killed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.run_report import RunReport
from cirron_otel.core.run.spool_summary import summarise
from cirron_otel.core.run.trees import TreeNode, build_trees
from cirron_otel.core.spool.paths import find_spool
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.recovery import recover
from cirron_otel.tools.cli.main import run as cli
from tests.kit.html_page import Page
from tests.kit.sessions.processes import run, start
from tests.kit.spools.reports import reported

NAN = "ValueError: loss is nan"
TERMINATED = "killed: the process was ended by SIGTERM"
WAYS = {
    "body": ("failed", NAN, 1),
    "scope": ("failed", NAN, 1),
    "finally": ("failed", NAN, 1),
    "exit code": ("failed", NAN, 3),
    "hook": ("failed", NAN, 1),
    "reported": ("failed", NAN, 0),
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
def manual_loops(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, str]]:
    return ended(tmp_path_factory.mktemp("failures"), WAYS, "by hand")


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, str]]:
    pytest.importorskip("torch")
    return ended(tmp_path_factory.mktemp("failures"), WITH_TORCH, "torch")


def ended(root: Path, ways: Iterable[str], loop: str) -> dict[str, tuple[Path, int, str]]:
    """The folder, exit code and stderr of a process for each way, all at once."""
    done = run("failing", root, ",".join(ways), loop)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    return {way: (root / way, codes[way], (root / f"{way}.err").read_text()) for way in ways}


def path_of(folder: Path) -> list[TreeNode]:
    """The session, its last epoch, and the last step of that."""
    [session] = build_trees(SpoolReader(folder)).trees
    epoch = session.children[-1]
    return [session, epoch, epoch.children[-1]]


def states(folder: Path) -> list[str]:
    return [session.state for session in summarise(SpoolReader(folder)).sessions]


def report_of(folder: Path) -> RunReport:
    reader = SpoolReader(folder)
    return reported(reader, reader, slowest=0)


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
def test_manual_loops_end_with_the_expected_status(
    manual_loops: dict[str, tuple[Path, int, str]], way: str
) -> None:
    check(way, manual_loops[way], WAYS[way])
    if way in ("body", "finally"):
        assert "ValueError: loss is nan" in manual_loops[way][2]
    if way == "hook":
        assert "the program's own hook" in manual_loops[way][2]


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


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 fails; rank 0, which waits, is ended by SIGTERM, as a launcher would end it."""
    folder = tmp_path_factory.mktemp("ranks")
    pipe = subprocess.PIPE
    ranks = [
        start("failing", folder, way, "by hand", env={"RANK": str(rank), "WORLD_SIZE": "2"},
              stdout=pipe, stderr=pipe)
        for rank, way in enumerate(("waits", "body"))
    ]  # fmt: skip
    assert ranks[0].stdout is not None
    assert ranks[0].stdout.readline() == "flushed\n"
    ranks[1].communicate(timeout=120)
    ranks[0].terminate()
    ranks[0].communicate(timeout=120)
    return folder


def test_of_two_ranks_the_one_that_began_it_comes_first(
    two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the terminal, in the JSON document, and on the page."""
    page = tmp_path / "run.html"
    assert cli(["report", str(two_ranks), "--full", "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAILED: ")
    assert "ValueError: loss is nan" in " ".join(lines[:2])
    first = lines.index("FAILED: rank 1: ValueError: loss is nan")
    assert lines[first + 1].startswith("  in epoch 0, step 2; after ")
    assert "; last loss 0.166667; process " in lines[first + 1]
    assert "failing.py:" in lines[first + 2]
    assert lines[first + 3] == "KILLED: rank 0: the process was ended by SIGTERM"
    assert [line for line in lines if line.endswith(", as the mean of 2 ranks:")]
    assert cli(["report", str(two_ranks), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(each["rank"], each["state"], each["step"]) for each in document["failures"]] == [
        (1, "failed", "2"), (0, "killed", "2"),
    ]  # fmt: skip
    texts = Page(page.read_text()).texts
    shown = texts[texts.index("What failed") :]
    place = shown.index("rank 1 failed: ValueError: loss is nan")
    assert place < shown.index("Where the time went")
    assert cli(["spool", "ls", str(two_ranks), "--json"]) == 0
    sessions = json.loads(capsys.readouterr().out)["sessions"]
    assert {each["ranks"][0]: each["state"] for each in sessions} == {0: "killed", 1: "failed"}


def test_drops_are_a_warning_a_finding_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start("dropping", tmp_path, stderr=subprocess.PIPE)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "dropped while recording: " in error
    page = tmp_path / "run.html"
    assert cli(["report", str(tmp_path), "--json", "--html", str(page)]) == 1
    out, error = capsys.readouterr()
    document = json.loads(out)
    [drop] = document["drops"]
    assert (drop["reason"], drop["rank"]) == ("scopes_buffer_full", 0)
    assert drop["count"] > 10_000
    assert [each["code"] for each in document["skipped"]] == ["dropped"]
    assert f"warning: {drop['count']:,} scopes_buffer_full dropped while recording" in error
    assert "What was dropped" in Page(page.read_text()).texts
    assert cli(["report", str(tmp_path)]) == 1
    assert f"Dropped: {drop['count']:,} scopes_buffer_full" in capsys.readouterr().out
