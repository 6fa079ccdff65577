"""Failed and unfinished scopes in the output of `spool ls` and `spool show`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.kit.html_page import Page
from tests.tools.conftest import Run, environment

KILLED = """
import os, signal
import cirron_otel as ci
ci.profile(frameworks=[], output_dir="run", flush_interval=3600)
try:
    with ci.scope("backward"):
        raise ValueError("loss is nan")
except ValueError:
    pass
with ci.scope("epoch", 7):
    ci.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_failed_and_incomplete_scopes_are_marked(run: Run, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=tmp_path, env=environment(), check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert run("spool", "recover", "run").returncode == 0
    listed = run("spool", "ls", "run").stdout
    assert "  killed  rank 0, pid " in listed
    died = "the process ended without closing its session"
    assert f"\n  {died}\n" in listed
    report = run("report", "run", "--full", "--html", "page.html").stdout.splitlines()
    assert report[0].startswith("FAILED: ")
    assert f"KILLED: rank 0: {died}" in report
    assert f"rank 0 killed: {died}" in Page((tmp_path / "page.html").read_text("utf-8")).texts
    shown = run("spool", "show", "run").stdout
    (backward,) = [line for line in shown.splitlines() if "backward" in line]
    (epoch,) = [line for line in shown.splitlines() if "epoch 7" in line]
    assert "✗ ValueError: loss is nan" in backward
    assert "✗ incomplete: the process" in epoch
    tree = json.loads(run("spool", "show", "run", "--json").stdout)
    assert '"error": "ValueError: loss is nan"' in json.dumps(tree)
    assert list((tmp_path / "run" / "state").glob("journal-*")) == []
