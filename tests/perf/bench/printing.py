"""What a section of the benchmark prints at sizes that say nothing about times."""

from __future__ import annotations

import re
import subprocess
import sys

from .sdk import ROOT


def printed_by(section: str, *options: str) -> str:
    """All that it prints, at its tiny sizes."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.perf.bench", section, "--tiny", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def has_rows(printed: str, *rows: str) -> bool:
    """Whether each of the patterns is how a line begins, behind its margin."""
    return all(re.search(rf"^  {row}", printed, re.MULTILINE) for row in rows)
