"""`demo` without a training: the recording, and every way in which torch may fail.

A broken torch is a package of that name on the PYTHONPATH. For tests without torch, the
interpreter's finder is patched to hide it.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.tools.cli.demo import RECORDING
from tests.tools.conftest import (
    COMMAND,
    Run,
    environment,
    one_line,
    same_batches,
)

_HIDING = """
import importlib.machinery
real = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name == "torch" else real(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the command makes its temporary directories."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    return path


def python_path(tmp_path: Path, file: str, code: str) -> dict[str, str]:
    """Return variables that put a file with this code first on the interpreter's path."""
    path = tmp_path / "imported" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    return {"PYTHONPATH": str(tmp_path / "imported")}


def without_torch(tmp_path: Path) -> dict[str, str]:
    return python_path(tmp_path, "sitecustomize.py", _HIDING)


def broken_torch(tmp_path: Path, code: str) -> dict[str, str]:
    return python_path(tmp_path, "torch/__init__.py", code)


def holds_the_recording(spool: Path) -> bool:
    return same_batches(spool, RECORDING / "spool")


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a training that failed; before it, stderr has the progress."""
    lines = result.stderr.splitlines()
    progress = [each for each in lines if "training a small" in each or "still working" in each]
    (message,) = (each for each in lines if each not in progress)
    result.stderr = message
    return one_line(result, 1)


def test_the_recording_is_shown(run: Run, temporary: Path) -> None:
    result = run("demo", "--replay")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("A recording. This is what ")
    assert "├── epoch 0-1  median " in result.stdout
    assert re.search(r"^unattributed +15 .* %", result.stdout, re.MULTILINE)
    (made,) = temporary.iterdir()
    assert holds_the_recording(made / "spool")
    assert f"spool   {made}/spool  (" in result.stdout
    assert f"OTLP    {made}/trace.jsonl  (" in result.stdout
    assert (made / "trace.jsonl").is_file()
    assert f"SQLite  {made}/trace.db  (143 spans through a collector; " in result.stdout


def test_suggested_next_commands_succeed(run: Run, tmp_path: Path) -> None:
    shown = run("demo", "--replay", "--output", "a b").stdout
    shown = shown.partition("Try next:")[2].partition("\nand ")[0]
    said = re.findall(r"^  cirron-otel (.*)$", shown, re.MULTILINE)
    assert [command.split()[0] for command in said] == ["report", "report", "doctor"]
    for command in said:
        done = subprocess.run(
            ["bash", "-c", f"cirron-otel {command}"],
            cwd=tmp_path, env=environment(), check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert command.startswith("doctor") or "15 steps of 1 rank" in " ".join(done.stdout.split())
    assert (tmp_path / "a b" / "perfetto.json").is_file()


def test_suggestions_use_the_full_command_if_it_is_not_on_the_path(
    run: Run, tmp_path: Path
) -> None:
    shown = run("demo", "--replay", env={"PATH": os.defpath}).stdout
    assert f"\n  {COMMAND} report " in shown


def test_replays_the_recording_if_torch_is_not_installed(run: Run, tmp_path: Path) -> None:
    hidden = without_torch(tmp_path)
    result = run("demo", env=hidden)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("A recording, because PyTorch is not installed. ")
    assert "pip install 'cirron-otel[torch]'" in result.stdout
    document = json.loads(run("demo", "--json", env=hidden).stdout)
    assert (document["trained"], document["equal"]) == (False, True)
    assert document["reason"] == "PyTorch is not installed"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ImportError('libcudart.so.13: no such file')", "ImportError: libcudart.so.13: no "),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by SIGSEGV"),
        ("import sys; sys.exit(3)", "it ended with 3"),
        ("import sys; sys.exit()", "nothing was recorded: "),
        ("raise OSError('\\x1b[31m' + 300 * 'x')", r"OSError: \x1b[31mxxx"),
    ],
)
def test_a_torch_that_does_not_work_is_reported(
    run: Run, tmp_path: Path, code: str, reason: str
) -> None:
    result = run("demo", env=broken_torch(tmp_path, code))
    assert reason in last_line(result)
    assert "A recording, because " in result.stdout
    assert "└── epoch 2" in result.stdout


def test_json_is_one_document_also_if_the_training_fails(run: Run, tmp_path: Path) -> None:
    result = run("demo", "--json", env=broken_torch(tmp_path, "raise ValueError('no')"))
    document = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert document["reason"] == "ValueError: no"
    assert document["spans"] == document["to_otlp"]["spans"] == document["to_spool"]["spans"] > 100
    assert "ValueError: no" in last_line(result)


def test_files_are_stored_in_the_given_output_directory(
    run: Run, tmp_path: Path, temporary: Path
) -> None:
    for _ in range(2):
        result = run("demo", "--replay", "--output", "kept", "--json")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["output"] == "kept"
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == ["spool", "trace.db", "trace.jsonl"]
    assert stat.S_IMODE((tmp_path / "kept" / "trace.db").stat().st_mode) == 0o600
    assert holds_the_recording(tmp_path / "kept" / "spool")
    assert list(temporary.iterdir()) == []


def test_change_in_the_stored_spool_is_detected(run: Run, tmp_path: Path) -> None:
    assert run("demo", "--replay", "--output", "kept").returncode == 0
    victim = max((tmp_path / "kept" / "spool").iterdir())
    victim.write_bytes(victim.read_bytes().replace(b"cirron.session", b"cirron.other"))
    result = run("demo", "--replay", "--output", "kept")
    assert result.returncode == 1
    assert "NOT THE SAME" in result.stdout


@pytest.mark.parametrize(
    ("place", "code"), [("file", 2), ("file/below", 4), ("/proc/nothing/here", 4)]
)
def test_a_place_that_cannot_be_written(run: Run, tmp_path: Path, place: str, code: int) -> None:
    (tmp_path / "file").touch()
    assert one_line(run("demo", "--output", place), code)


def session_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the running processes of its session."""
    listed = subprocess.run(
        ["ps", "-o", "stat=,args=", "-s", str(process.pid)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [row for row in listed.stdout.splitlines() if not row.startswith("Z")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_leaves_nothing(
    tmp_path: Path, temporary: Path, number: signal.Signals
) -> None:
    """Ctrl-C goes to both processes, SIGTERM to the command alone."""
    started = tmp_path / "started"
    code = f"import time; open({str(started)!r}, 'w').close(); time.sleep(300)"
    process = subprocess.Popen(
        [COMMAND, "demo"],
        env=environment(**broken_torch(tmp_path, code)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 180
    while not started.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (130, "cirron-otel: interrupted")
    assert list(temporary.iterdir()) == []
    assert session_of(process) == []


def test_on_a_terminal_no_line_is_broken(tmp_path: Path) -> None:
    main, side = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "demo", "--replay", "--output", "kept"],
        cwd=tmp_path,
        env=environment(COLUMNS="60", TERM="xterm-256color"),
        stdout=side,
        stderr=subprocess.PIPE,
    )
    os.close(side)
    lines = b"".join(read(main)).decode().splitlines()
    assert (process.communicate(timeout=60)[1], process.returncode) == (b"", 0)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    start = next(at for at, line in enumerate(plain) if line.startswith("cirron.session "))
    tree = plain[start : plain.index("", start)]
    assert len(tree) > 10
    assert all(line[0] in "c├└│ " and len(line) <= 60 for line in tree)
    assert any("\x1b[" in line for line in lines)


def read(terminal: int) -> Iterator[bytes]:
    """Yield the output on a terminal until no process has it open."""
    try:
        while data := os.read(terminal, 65536):
            yield data
    except OSError:  # on Linux: no process has it open
        return
    finally:
        os.close(terminal)


def recorded_spans() -> list[dict[str, Any]]:
    files = sorted((RECORDING / "spool").iterdir())
    return [span for file in files for span in exactjson.loads(file.read_bytes())["spans"]]


def test_breakdown_matches_the_records(run: Run) -> None:
    spans = recorded_spans()
    found = json.loads(run("demo", "--replay", "--json").stdout)["breakdown"]
    steps = [span for span in spans if span["name"] == "step"]
    assert found["steps"]["times"] == len(steps) == 15
    assert found["steps"]["total_ns"] == sum(span["end_ns"] - span["start_ns"] for span in steps)
    rest = sum(span["attrs"].get("unattributed_ns", 0) for span in spans)
    assert found["unattributed"]["total_ns"] == rest > 0
    rows = [*found["phases"], found["unattributed"]]
    assert sum(row["total_ns"] for row in rows) == found["steps"]["total_ns"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_recording_contains_no_paths_of_its_machine() -> None:
    size = 0
    for file in (RECORDING / "spool").iterdir():
        batch = exactjson.loads(file.read_bytes())
        assert batch["sdk_version"].startswith("0.3.0+cirron-otel.")
        assert batch["otel"]["resource"]["attributes"]["host.name"] == "training-host"
        assert b'"/' not in file.read_bytes()
        size += file.stat().st_size
    assert 10_000 < size < 200_000
