"""The line at the end of a run, which one process writes once."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.sessions.processes import environment
from tests.kit.sessions.spool_trees import read_spool

PROGRAM = """
import multiprocessing, os, sys
import cirron_otel as ci

def work():
    with ci.scope("work"):
        pass

if __name__ == "__main__":
    profiler = ci.profile(frameworks="none", name="mine")
    work()
    children = [multiprocessing.get_context("fork").Process(target=work)]
    [child.start() for child in children]
    [child.join() for child in children]
    exec(sys.argv[1])
"""


def said(
    directory: Path, *words: str, ending: str = "", is_terminal: bool = True, **variables: str
) -> str:
    """What a program says on stderr."""
    (directory / "train.py").write_text(PROGRAM)
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    command = [*words, sys.executable, "train.py", ending]
    done = subprocess.run(
        command, cwd=directory, env=environment(**variables), stderr=theirs, timeout=60, check=False
    )
    os.write(theirs, b"\0")
    text = os.read(ours, 100_000).decode().partition("\0")[0]
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, text
    return text.replace("^@", "").replace("\r\n", "\n")


def test_the_line(tmp_path: Path) -> None:
    text = said(tmp_path)
    (run_id,) = {
        batch["otel"]["resource"]["attributes"]["cirron.run.id"]
        for batch in read_spool(tmp_path / ".cirron").batches
    }
    assert text == (f"cirron-otel: run mine is in .cirron: cirron-otel report --run {run_id[:8]}\n")


@pytest.mark.parametrize(
    ("is_terminal", "variables", "ending", "is_said"),
    [
        (False, {"CIRRON_OUTPUT_DIR": "out"}, "", True),
        (
            False,
            {
                "CIRRON_QUIET": "false",
                "CIRRON_OTEL_RUN_ID": "theirs",
                "CIRRON_OUTPUT_DIR": "out",
            },
            "ci.shutdown()",
            True,
        ),
        (True, {"CIRRON_QUIET": "true"}, "", False),
        (True, {"RANK": "1", "WORLD_SIZE": "2"}, "", False),
        (True, {"CIRRON_OUTPUT": "none"}, "", False),
        (True, {}, "sys.stderr = None; ci.shutdown()", False),
        (True, {"CIRRON_OTEL_RUN_ID": "theirs"}, "", False),
    ],
    ids=["no terminal", "wanted", "quiet", "rank 1", "no spool", "no stderr", "below run"],
)
def test_who_gets_it(
    tmp_path: Path, is_terminal: bool, variables: dict[str, str], ending: str, is_said: bool
) -> None:
    text = said(tmp_path, ending=ending, is_terminal=is_terminal, **variables)
    assert text.count("cirron-otel report") == is_said
    if is_said:
        assert " is in out: cirron-otel report out --run " in text
    else:
        assert text == ""
