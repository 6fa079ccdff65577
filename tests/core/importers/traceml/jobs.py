"""Jobs under the real TraceML, as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.backends import process
from tests.kit.environments import Environment

PROGRAM = Path(__file__).parent / "programs" / "train.py"
AGGREGATOR_HOST = "127.0.0.2"
"""The address of TraceML's own aggregator; the collector has 127.0.0.1, with the same port."""
_FORGOTTEN = ("OTEL_", "CIRRON_", "PYTHON", "TRACEML_")


def free_port() -> int:
    """Return a port that is free at both addresses, and that no one else is given at the first."""
    while True:
        port = process.free_port()
        with contextlib.suppress(OSError), socket.create_server((AGGREGATOR_HOST, port)):
            return port


class Job(NamedTuple):
    """A job that has ended."""

    code: int
    losses: list[float]
    output: str
    folder: Path
    """The folder of TraceML's run."""

    @property
    def summary(self) -> dict[str, Any]:
        """The final summary."""
        document: dict[str, Any] = json.loads((self.folder / "final_summary.json").read_text())
        return document

    @property
    def rank_rows(self) -> list[dict[str, Any]]:
        """The summary's rows of step times, one for each rank."""
        rows = self.summary["step_time"]["groups"]["rows"]
        return [*rows.values()] if isinstance(rows, dict) else rows


class RunningJob:
    """A job of `traceml run`, whose processes send to 127.0.0.1."""

    def __init__(
        self, environment: Environment, folder: Path, port: int, *arguments: str | Path,
        ranks: int = 1, variables: dict[str, str] | None = None, interval: float = 0.5,
    ) -> None:  # fmt: skip
        """Start it; the aggregator listens on `port` of another address."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        program, *rest = arguments
        command = [
            environment.make().with_name("traceml"), "run", "--mode", "summary",
            "--run-name", "job", "--logs-dir", folder / "logs", "--interval", str(interval),
            "--aggregator-host", "127.0.0.1", "--aggregator-bind-host", AGGREGATOR_HOST,
            "--aggregator-port", str(port), "--master-port", str(free_port()),
            "--nproc-per-node", str(ranks), program, "--args", *rest,
        ]  # fmt: skip
        self.log = folder / "output.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                list(map(str, command)), cwd=folder, stdout=log, stderr=log,
                env=variables_of(folder, variables),
            )  # fmt: skip

    def wait(self, timeout: float = 400) -> Job:
        """Wait for its end."""
        code = self.process.wait(timeout)
        losses = self.folder / "losses.json"
        return Job(
            code,
            json.loads(losses.read_text()) if losses.exists() else [],
            self.log.read_text(),
            self.folder / "logs" / "job",
        )


def variables_of(folder: Path, variables: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of a job, without those of this package."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(_FORGOTTEN)
    }
    own = {"CUDA_VISIBLE_DEVICES": "", "LOSSES": str(folder / "losses.json")}
    return {**inherited, **own, **(variables or {})}
