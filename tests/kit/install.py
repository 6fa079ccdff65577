"""Run `pip install`, and retry if a download breaks off, as happens with gigabytes.

`python -m tests.kit.install ARGUMENTS OF PIP INSTALL` installs into the environment of that Python.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PAUSES = (5.0, 20.0, 60.0)
"""Seconds before each retry: a server or proxy may take a while to recover."""
_BROKEN = (
    "incomplete-download",
    "IncompleteRead",
    "ReadTimeout",
    "ConnectionReset",
    "HTTP error 5",
)
"""Parts of pip's messages about broken downloads, which are retried; other failures are not."""


def install(
    python: str | Path, args: Sequence[str], *, pauses: Sequence[float] = PAUSES
) -> subprocess.CompletedProcess[str]:
    """Run `pip install` with this interpreter; retry after each pause while a download breaks.

    Returns the result of the last attempt, with its stderr; stdout is not captured.
    """
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *args]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    for pause in pauses:
        if done.returncode == 0 or not any(word in done.stderr for word in _BROKEN):
            break
        print(f"{done.stderr}a download broke: again in {pause:g} s", file=sys.stderr, flush=True)
        time.sleep(pause)
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    return done


def main() -> int:
    """Install the packages that the command line names."""
    done = install(sys.executable, sys.argv[1:])
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
