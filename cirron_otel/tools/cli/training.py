"""Run the demo's training in a separate process, the only process that imports torch.

If torch cannot be imported, or crashes, only the training fails.
"""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "program" / "train.py"
_LIMIT_S = 600
_TAKEN = ("CIRRON_", "OTEL_")
_SETTINGS = {
    "CIRRON_ENABLED": "true",
    "CIRRON_DETAIL_EVERY": "0",
    "CIRRON_EXPORTERS": "none",
    "CIRRON_FRAMEWORKS": "torch",
    "CIRRON_JOIN": "none",
    "CIRRON_OUTPUT": "spool",
    "CIRRON_QUIET": "true",
    "CIRRON_SNAPSHOTS": "stats",
}
"""The settings that make the training independent of cirron.yaml and ~/.cirron/config.toml."""
_MOST = 200
"""The maximum length of a reason, in characters."""


class TrainingError(Exception):
    """The training failed; the message is one line with the reason."""


def is_installed() -> bool:
    """Return whether torch is installed. It is not imported, because the import may crash."""
    from importlib.util import find_spec

    return find_spec("torch") is not None


def train(directory: Path, images: int | None = None, **settings: str) -> str:
    """Train, traced into the spool of `directory`; return the session's id.

    The tracing configuration of this environment has no effect; the variables in `settings` do.
    Raises TrainingError.
    """
    import subprocess

    command = [sys.executable, "-P", str(PROGRAM), str(directory)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_TAKEN)}
    try:
        done = subprocess.run(
            command if images is None else [*command, str(images)],
            env={**environ, **_SETTINGS, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TrainingError(f"it took longer than {_LIMIT_S} s") from None
    except OSError as error:
        raise TrainingError(f"it cannot be started: {error.strerror or error}") from None
    if done.returncode:
        raise TrainingError(_reason(done.returncode, done.stderr.decode(errors="replace")))
    return (done.stdout.decode(errors="replace").split() or [""])[-1]


def _reason(status: int, said: str) -> str:
    """Return the last line of a process's stderr, or the signal that ended the process."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = (lines or [f"it ended with {status}"])[-1]
    if status < 0:
        last = f"it was ended by {_signal(-status)}"
    return last if len(last) <= _MOST else last[: _MOST - 1] + "…"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
