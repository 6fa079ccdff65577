"""`run --summary` and `ci.summary()`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.sessions.processes import environment
from tests.tools.cli.run.running import command

PROGRAM = """
import sys, time
import cirron_otel as ci

ci.profile(frameworks="none")
for _ in ci.batches(range(60)):
    with ci.scope("data_load"):
        time.sleep(0.004)
    with ci.scope("forward"):
        time.sleep(0.004)
sys.exit(int(sys.argv[1]))
"""


def ran(folder: Path, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    return subprocess.run(
        command(*options, "--", sys.executable, "train.py", code),
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_the_final_summary(tmp_path: Path, quiet: tuple[str, ...]) -> None:
    done = ran(tmp_path, *quiet, "--summary", "final.json", code=3)
    assert done.returncode == 3
    assert ("the summary is in final.json and final.txt" in done.stderr) == (not quiet)
    assert not quiet or done.stderr == ""
    summary = json.loads((tmp_path / "final.json").read_text())
    assert (summary["schema_version"], summary["exit_code"]) == (2, 3)
    document = summary["document"]
    assert (document["schema_version"], document["status"]) == (2, "failed")
    assert "INPUT_BOUND" in [each["kind"] for each in document["findings"]]
    assert document["units"]["count"] == 60
    text = (tmp_path / "final.txt").read_text()
    assert ": exit code 3 after " in text.splitlines()[0]
    assert "FAILED: " in text
    assert " INPUT_BOUND: " in text
    assert "The time, " in text
    assert all(len(line) <= 100 for line in text.splitlines()[5:])


@pytest.mark.parametrize("name", ["", "-", "final.txt", "."])
def test_a_wrong_name_starts_nothing(tmp_path: Path, name: str) -> None:
    done = ran(tmp_path, "--summary", name)
    assert done.returncode == 2
    assert "expected the name of a JSON file" in done.stderr
    assert not (tmp_path / ".cirron").exists()


def test_a_summary_that_cannot_be_written(tmp_path: Path) -> None:
    """The exit code is the command's."""
    done = ran(tmp_path, "--quiet", "--summary", "missing/final.json", code=4)
    assert done.returncode == 4
    assert "the summary is not written: " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_without_steps(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("print('done')\n")
    done = subprocess.run(
        command("--quiet", "--summary", "final.json", "--", sys.executable, "idle.py"),
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    document = json.loads((tmp_path / "final.json").read_text())["document"]
    assert (document["units"], document["ledger"]) == (None, None)


TRACKED = """
import json, time
import cirron_otel as ci

assert ci.summary() == {}
ci.profile(frameworks="none", name="tracked")
for _ in ci.batches(range(60)):
    with ci.scope("data_load"):
        time.sleep(0.004)
    with ci.scope("augment"):
        time.sleep(0.002)
    with ci.scope("forward"):
        time.sleep(0.004)
inside = ci.summary()
ci.shutdown()
print(json.dumps([inside, ci.summary(), ci.summary(".cirron", "tracked"), ci.summary("nowhere"),
                  ci.summary(".cirron", "unknown")]))
"""


def test_a_flat_dictionary(tmp_path: Path) -> None:
    """It has the same keys inside the session and after it; it never raises."""
    (tmp_path / "tracked.py").write_text(TRACKED)
    done = subprocess.run(
        [sys.executable, "tracked.py"], cwd=tmp_path, env=environment(), capture_output=True,
        text=True, timeout=120, check=True,
    )  # fmt: skip
    inside, after, named, nowhere, unknown = json.loads(done.stdout)
    inside_keys, after_keys = (
        {key for key in each if not key.startswith("cirron/account/")} for each in (inside, after)
    )
    assert inside_keys == after_keys
    assert after == named
    assert nowhere == unknown == {}
    assert inside["cirron/status"] == "critical"
    assert inside["cirron/headline"].startswith("Loading (data_load) takes ")
    assert [inside[f"cirron/{name}"] for name in ("unit", "units", "ranks")] == ["step", 60, 1]
    assert 0.2 < inside["cirron/finding/input_bound"] < 0.5
    assert inside["cirron/account/input"] >= inside["cirron/finding/input_bound"]
    accounts = [value for key, value in inside.items() if key.startswith("cirron/account/")]
    assert sum(accounts) == pytest.approx(1)
    assert inside["cirron/phase/data_load_ms"] >= 4
    assert inside["cirron/phase/augment_ms"] >= 2
    assert inside["cirron/unit_ms"] >= 10
    assert all(isinstance(value, str | int | float) for value in inside.values())
