"""The real Stormlog from PyPI: 0.3.9 writes schema 3, and 0.4.3 writes schema 4.

Each release has an environment of its own, with its packages ahead of those of the tests'
environment, so that torch is there once. `make frameworks` makes both.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit.environments import SITE_PACKAGES, Environment

_PINS = Path(__file__).with_name("pins")


def _release(version: str) -> Environment:
    return Environment(
        f"peers/stormlog-{version}",
        pins=_PINS / f"stormlog-{version}.txt",
        paths=(SITE_PACKAGES,),
    )


STORMLOG_039 = _release("0.3.9")
"""`import stormlog`, and the commands `bin/gpumemprof` and `bin/stormlog`; schema 3."""
STORMLOG_043 = _release("0.4.3")
"""The same with schema 4."""
STORMLOG = {"stormlog-0.3.9": STORMLOG_039, "stormlog-0.4.3": STORMLOG_043}
"""Both releases by name."""
RELEASES = [pytest.param("0.3.9", marks=pytest.mark.matrix("other-peers")), "0.4.3"]
"""Both releases as parameters of tests."""


class Peer:
    """A process with one release of Stormlog that answers the questions of `peer_program.py`."""

    def __init__(self, version: str) -> None:
        """Start the process. Raises EnvironmentUnavailableError."""
        self.version = version
        python = STORMLOG[f"stormlog-{version}"].make()
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name("peer_program.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return the answer; a string that starts with `error: ` if Stormlog raised one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([question, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["value"] if "value" in answer else f"error: {answer['error']}"

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=180)
