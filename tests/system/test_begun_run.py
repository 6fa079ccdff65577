"""A run that has begun, and has sealed no record, is shown as running with its start."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.sessions.processes import environment, until

COMMAND = Path(sys.executable).with_name("cirron-otel")
PROGRAM = """
import cirron_otel as ci
ci.profile(output_dir="out", frameworks="none", exporters="none", name="begun")
print("open", flush=True)
input()
with ci.scope("work"):
    pass
"""


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *words], cwd=folder, env=environment(TZ="UTC"), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("has_earlier_run", [False, True])
def test_a_run_that_has_just_begun_is_running_since_its_start(
    tmp_path: Path, has_earlier_run: bool
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "train.py"]
    if has_earlier_run:
        subprocess.run(
            command, cwd=tmp_path, env=environment(), input="\n", capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
    before = time.time_ns()
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    after = time.time_ns()
    until(lambda: list((tmp_path / "out" / "state").glob("journal-*.json")))
    begun = json.loads(_run(tmp_path, "report", "out", "--json").stdout)
    text = _run(tmp_path, "report", "out").stdout
    process.communicate("\n", timeout=120)
    assert process.returncode == 0
    ended = json.loads(_run(tmp_path, "report", "out", "--json").stdout)
    assert (begun["state"], begun["run"]["name"]) == ("running", "begun")
    assert before < begun["run"]["first_ns"] < after
    assert [each["name"] for each in begun["open_scopes"]] == ["cirron.session"]
    assert "begun (out): running since " in text
    assert ended["state"] == "ended"
    for key in ("id", "first_ns", "script"):
        assert ended["run"][key] == begun["run"][key]
