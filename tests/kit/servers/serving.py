"""A collector in a process of its own, asked over loopback.

Its process is forked from one that has imported the collector (`command_server`), unless the
variables that Python reads at its start have changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .command_server import COLLECTOR, StartedCommand, shared_server, starts_alike

_ENVIRONMENT = dict(os.environ)
PROGRAM = "import sys; from cirron_otel.tools.cli import main; sys.exit(main())"


class Serving:
    """A running `cirron-otel collector`."""

    def __init__(self, folder: Path, *options: str, program: str | None = None) -> None:
        """Start it on free ports, with its spool in `folder`, and wait until it listens.

        With `program`, a new interpreter runs this text with the arguments of `cirron-otel`. It
        inherits the umask, the limits, the CPU affinity and the ignored signals of this process,
        which a forked collector does not.
        """
        self.folder = folder
        self.log = folder.parent / f"{folder.name}.log"
        command = ["collector", "--spool", str(folder), "--json", "--grpc", "localhost:0",
                   "--http", "localhost:0", *options]  # fmt: skip
        self.process: subprocess.Popen[str] | StartedCommand
        with self.log.open("a") as log:
            if program is None and starts_alike(os.environ, _ENVIRONMENT):
                self.process = shared_server(COLLECTOR).start(
                    ["cirron-otel", *command], Path.cwd(), os.environ, log
                )
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", program or PROGRAM, *command],
                    stdout=subprocess.PIPE, stderr=log, text=True,
                )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.process.stdout.close()
        assert line, self.log.read_text()
        addresses = json.loads(line)
        self.grpc, self.http = addresses["grpc"], f"http://{addresses['http']}"
        self.traceml: str | None = addresses.get("traceml")

    def translator(self) -> int | None:
        """The process id of its second process."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(OSError):
            children = found.read_text().split()
            return int(children[0]) if children else None
        return None

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Ask it to end; its exit code."""
        self.process.terminate()
        return self.process.wait(180)


@contextlib.contextmanager
def serving(folder: Path, *options: str, program: str | None = None) -> Iterator[Serving]:
    """A collector that is gone afterwards."""
    found = Serving(folder, *options, program=program)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.kill()


def spans_of(folder: Path) -> list[dict[str, Any]]:
    """All span records in the spool of a collector."""
    spans: list[dict[str, Any]] = []
    for path in sorted((folder / "spool").glob("*.json")):
        spans += json.loads(path.read_bytes())["spans"]
    return spans
