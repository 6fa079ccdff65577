"""A collector that runs as long as a command. It listens on a free local port and writes to SQLite.

It ends with the command, even if the command is killed: it watches a pipe that the command holds
open.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_START_S = 60.0
END_S = 45.0
"""The time to wait for the collector to end, seconds; it is longer than the collector's
`drain_s`."""
_ROUND_S, _GONE_ROUNDS, _MOST_ROUNDS = 0.1, 3, 50
"""Cleanup after a kill: the seconds between two checks, how many checks in a row must find the
folder gone, and the maximum number of checks."""
_PROGRAM = "from cirron_otel.tools.cli.embedded_collector import serve; serve({})"


class EmbeddedError(Exception):
    """The collector failed; the message is one line with the reason."""


class Embedded:
    """A running `cirron-otel collector`; a context manager that ends it and removes its files."""

    def __init__(self, directory: Path, database: Path) -> None:
        """Start the collector without waiting for it.

        Its spool and log are in `directory` until it ends. Raises EmbeddedError.
        """
        self._folder = tempfile.TemporaryDirectory(
            dir=directory, prefix=".collector-", ignore_cleanup_errors=True
        )
        place = Path(self._folder.name)
        self._log = place / "log"
        command = [
            *(
                sys.executable,
                "-P",
                "-c",
                _PROGRAM.format(os.getpid()),
                "collector",
                "--json",
                "--log-level",
                "warning",
            ),
            *("--grpc", "127.0.0.1:0", "--http", "off"),
            *("--spool", str(place), "--storage", f"sqlite:///{database.absolute()}"),
        ]
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("CIRRON_", "OTEL_"))}
        try:
            with self._log.open("wb") as log:
                # Start the collector in a new session: when a terminal is closed, the command ends,
                # and a collector in the same session would end before its files are removed.
                self._process = subprocess.Popen(
                    command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            self._folder.cleanup()
            raise EmbeddedError(f"it cannot be started: {error.strerror or error}") from None

    def endpoint(self) -> str:
        """Wait until the collector listens, and return its OTLP/gRPC address. Raises
        EmbeddedError.
        """
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        is_there, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline() if is_there else b""
        try:
            return f"http://{json.loads(line)['grpc']}"
        except (ValueError, KeyError, TypeError):
            raise EmbeddedError(self._reason("it does not start")) from None

    def finish(self) -> None:
        """Tell the collector to store all received data, and wait until it has exited.

        Raises EmbeddedError if it fails.
        """
        self._hang_up()
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise EmbeddedError(f"it does not end within {END_S:.0f} s") from None
        if code < 0:
            raise EmbeddedError(f"it was ended by {signal.Signals(-code).name}")
        if code != 0:
            raise EmbeddedError(self._reason(f"it ended with {code}"))

    def _hang_up(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _reason(self, otherwise: str) -> str:
        """Return the last message of the collector's log, or `otherwise` if there is none."""
        with contextlib.suppress(OSError):
            for line in reversed(self._log.read_text(errors="replace").splitlines()):
                if not line.startswith("cirron-otel: warning"):
                    return _message(line)
        return otherwise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _ignoring_interrupts():
            if self._process.poll() is None:
                self._hang_up()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0 if kind is None else 5)
            if self._process.poll() is None:
                self._process.kill()  # the collector's second process ends with it
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._remove()

    def _remove(self) -> None:
        """Remove the collector's files; after a kill, its second process may still write some."""
        self._folder.cleanup()
        absences, rounds = 0, 0
        while self._process.returncode < 0 and absences < _GONE_ROUNDS and rounds < _MOST_ROUNDS:
            time.sleep(_ROUND_S)
            rounds += 1
            absences = 0 if Path(self._folder.name).exists() else absences + 1
            self._folder.cleanup()


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore further Ctrl-C within the block, so that the cleanup is completed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    both = (signal.SIGINT, signal.SIGTERM)
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in both]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def _message(line: str) -> str:
    """Return the message in a line of the collector's log."""
    with contextlib.suppress(ValueError):
        entry: Any = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("message"), str):
            return str(entry["message"])
    return line.removeprefix("cirron-otel: ").removeprefix("error: ").strip()
