"""Jobs under the real TraceML, as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit import references
from tests.kit.backends import process
from tests.kit.environments import Environment

from .peers import TRACEML, TRACEML_050
from .recording_proxy import RecordingProxy

PROGRAM = Path(__file__).parent / "programs" / "train.py"
_LAUNCHER = """\
import sys
from traceml_ai.launcher import cli, commands
commands.DEFAULT_SHUTDOWN_TIMEOUT_SEC = 60.0
sys.exit(cli.main())
"""
"""The command `traceml`, with more time for the summary: TraceML 0.3.1 kills its aggregator after 5
seconds."""
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
            environment.make(), "-c", _LAUNCHER, "run", "--mode", "summary",
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


class Reference(NamedTuple):
    """The results of a job whose frames reach only TraceML's own aggregator."""

    losses: list[float]
    files: list[str]
    """The names of the files of TraceML's run."""
    step_time: dict[str, Any]
    """This part of the final summary."""


def assert_complete(
    losses: list[float], step_time: dict[str, Any], steps: int, ranks: int = 1
) -> None:
    """Assert that a job has a loss of each step, and that its summary has all steps and ranks."""
    assert len(losses) == steps
    window = step_time["global"]["window"]
    assert (window["steps_analyzed"], window["end_step"]) == (steps, steps)
    assert step_time["metadata"]["global_ranks_used"] == ranks


def reference(
    version: str, folder: Path, program: Path, steps: int, *arguments: str, ranks: int = 1
) -> Reference:
    """Return the results of a job without the collector.

    Complete results are stored for later test runs; others are an error.
    """
    environment = TRACEML[version]
    files = [program, Path(__file__), environment.pins]
    key = references.key_of(files, "TraceML alone", version, str(ranks), str(steps), *arguments)
    result = references.load(key)
    if result is None:
        port = free_port()
        with RecordingProxy(folder / "recorded", (AGGREGATOR_HOST, port), port=port):
            job = RunningJob(
                environment, folder, port, program, str(steps), *arguments, ranks=ranks
            ).wait()
        assert job.code == 0, job.output
        assert_complete(job.losses, job.summary["step_time"], steps, ranks)
        result = [job.losses, sorted(files_of(job.folder)), job.summary["step_time"]]
        references.store(key, result)
    return Reference(*result)


def losses_without_traceml(folder: Path, steps: int) -> list[float]:
    """Return the losses of `PROGRAM` with TraceML off; they are stored for later test runs."""
    key = references.key_of(
        [PROGRAM, Path(__file__), TRACEML_050.pins], "without TraceML", str(steps)
    )
    losses: list[float] | None = references.load(key)
    if losses is None:
        folder.mkdir()
        done = subprocess.run(
            [TRACEML_050.make(), PROGRAM, str(steps)], cwd=folder, capture_output=True, text=True,
            env=variables_of(folder, {"TRACEML_DISABLED": "1"}), timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        losses = json.loads((folder / "losses.json").read_bytes())
        assert len(losses) == steps
        references.store(key, losses)
    return losses


def files_of(folder: Path) -> set[str]:
    """Return the names of the files of TraceML's run, except those of SQLite's log."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def variables_of(folder: Path, variables: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of a job, without those of this package."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(_FORGOTTEN)
    }
    own = {"CUDA_VISIBLE_DEVICES": "", "LOSSES": str(folder / "losses.json")}
    return {**inherited, **own, **(variables or {})}
