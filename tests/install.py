"""`pip install`, again where a file broke off on its way, as happens with gigabytes.

`python -m tests.install ARGUMENTS OF PIP INSTALL` installs into the environment of that Python.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PAUSES = (5.0, 20.0, 60.0)
"""Before each attempt but the first, seconds: a server or proxy may take a while to recover."""
_BROKEN = (
    "incomplete-download",
    "IncompleteRead",
    "ReadTimeout",
    "ConnectionReset",
    "HTTP error 5",
)
"""What pip says then. A package that is not there, or no network at all, stays so."""


def install(
    python: str | Path, args: Sequence[str], *, pauses: Sequence[float] = PAUSES
) -> subprocess.CompletedProcess[str]:
    """Run `pip install` with this interpreter: again after each pause while its downloads break.

    Returns the last attempt with what it wrote to stderr; stdout is not captured.
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
    """Install what the command line names."""
    done = install(sys.executable, sys.argv[1:])
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
