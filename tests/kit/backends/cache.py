"""The folder of the built backends, and the functions that building and fetching share.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

PINS = Path(__file__).parents[3] / "collector-config"
LOG_LINES = 15


class BuildError(Exception):
    """A backend cannot be built; the message is one line, or ends with the log's last lines."""


def folder() -> Path:
    """Where the binaries, their stamps and the logs of their builds are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "cirron-otel" / "backends"


def run_logged(command: list[str], work: Path, log: Path, settings: Mapping[str, str]) -> None:
    """Run `command` in `work` with its output appended to `log`; BuildError if it fails."""
    with log.open("ab") as output:
        result = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if result.returncode != 0:
        tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        raise BuildError(
            f"`{command[0]} {command[1]}` failed with exit status {result.returncode}; "
            f"the end of {log}:\n  " + "\n  ".join(tail)
        )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on building for the block, after any other build has ended."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def listed(names: list[str]) -> str:
    """Names as a list in a sentence."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"backends: {text}", flush=True)
