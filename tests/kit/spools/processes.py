"""Real processes that hold something of a spool until they are told to end, or are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import TracebackType
from typing import Self

_BEFORE = """
import json, os, sys, time
from pathlib import Path
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.spool.journal import OwnerJournal
from cirron_otel.core.spool.lease import claim
from cirron_otel.core.spool.owner import Owner, is_alive
from cirron_otel.core.spool.paths import SpoolPaths, file_name
from tests.kit.spools.journals import EPOCH_NS, journal, open_span, sealed
from tests.kit.spools.made import encoded, made, mark, span, span_id
paths = SpoolPaths.under(Path(sys.argv[1]))

def say(*words):
    print(*words, flush=True)
"""


class Process:
    """A Python process that runs `script`; `paths`, `say` and the helpers of tests are in it."""

    def __init__(self, script: str, *arguments: object) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", _BEFORE + script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it says."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().rstrip("\n")

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def end(self) -> int:
        """Let it go on to its end: it waits for its standard input to be closed."""
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        return self.popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                stream.close()
