"""An exit code other than 0 is a failure of the run; the exit code and the output do not change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.cli.main import run as cli
from tests.kit.html_page import Page
from tests.kit.sessions.processes import environment

from .running import run

PROGRAM = """
import sys
import cirron_otel as ci
for epoch in ci.epochs(range(2)):
    for step in ci.batches(range(3)):
        ci.mark("loss", 1 / (1 + 3 * epoch + step))
        print("step", step)
        if (epoch, step) == (1, 1):
            {leave}
"""
CODES = {
    "sys.exit(3)": 3,
    "sys.exit('no data')": 1,
    "raise SystemExit(True)": 1,
    "__import__('os')._exit(4)": 4,
    "sys.exit(0)": 0,
    "sys.exit(None)": 0,
    "sys.exit(False)": 0,
}


@pytest.mark.parametrize("leave", CODES)
def test_the_exit_code_is_the_reason(
    leave: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*arguments: str) -> str:
        assert cli([*arguments]) == 0
        return capsys.readouterr().out

    def document(*arguments: str) -> Any:
        return json.loads(shown(*arguments, "--json"))

    words = [sys.executable, "-u", "-c", PROGRAM.format(leave=leave)]
    plain = subprocess.run(
        words, cwd=tmp_path, env=environment(CIRRON_ENABLED="false"), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    done = run(tmp_path, "-q", "--", *words)
    assert done.returncode == plain.returncode == CODES[leave]
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
    spool = str(tmp_path / ".cirron")
    code = CODES[leave]
    reason, status = f"exit code {code}", "failed" if code else "closed"
    [listed] = document("runs", "ls", spool)["runs"]
    if leave.startswith("__import__"):
        assert listed["status"] in ("failed", "killed")
    else:
        assert listed["status"] == status
    sessions = document("spool", "ls", spool)["sessions"]
    job = next(each for each in sessions if each["ranks"] == [])
    assert (job["state"], job["error"]) == (status, reason if code else None)
    assert (f"  {reason}\n" in shown("spool", "ls", spool)) == bool(code)
    page = tmp_path / "page.html"
    lines = shown("report", spool, "--full", "--html", str(page)).splitlines()
    failures = document("report", spool)["failures"]
    texts = Page(page.read_text("utf-8")).texts
    if not code:
        assert failures == []
        assert not any("FAILED" in line for line in lines)
        assert "What failed" not in texts
        return
    failed = [each for each in failures if each["rank"] is None]
    assert [each["error"] for each in failed] == [reason]
    assert f"failed: {reason}" in texts
    assert f"FAILED: {reason}" in lines
    if leave.startswith("__import__"):
        return  # the session of the training failed as well: it has the place
    assert lines[0].startswith("FAILED: ")
    facts = lines[lines.index(f"FAILED: {reason}") + 1]
    assert facts.startswith("  in epoch 1, step 1; after ")
    assert "; last loss 0.2; process " in facts
    [failure] = failed
    assert (failure["epoch"], failure["step"], failure["last_loss"]) == ("1", "1", 0.2)


def test_exception_is_listed_ahead_of_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PROGRAM.format(leave="raise ValueError('boom')")
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "cirron-otel"), "run", "-q", "--", *words],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert cli(["report", str(tmp_path / ".cirron"), "--json"]) == 0
    first, last = json.loads(capsys.readouterr().out)["failures"]
    assert (first["error"], first["epoch"], first["step"]) == ("ValueError: boom", "1", "1")
    assert (last["error"], last["epoch"], last["last_loss"]) == ("exit code 1", None, None)
