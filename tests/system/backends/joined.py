"""The example of docs/joining.md, run by the very commands of the page."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.kit.backends.postgres import Postgres
from tests.kit.backends.process import Process, free_endpoints
from tests.tools.conftest import environment

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "joining.md").read_text()
EXAMPLE = ROOT / "docs" / "examples" / "joined"
STEPS, EPOCHS = 20, 2
PHASES = ("data_load", "zero_grad", "forward", "loss", "backward", "optimizer_step")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^epoch \d  loss (\S+)$", re.MULTILINE)


def until(holds: Callable[[], object], seconds: float = 180.0) -> None:
    """Wait until something holds; `seconds` is far more than it takes."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def blocks(language: str, start: str = "") -> list[str]:
    """The page's blocks in a language that begin so."""
    return [
        text
        for kind, text in _BLOCK.findall(PAGE)
        if kind == language and text[: len(start)] == start
    ]


def block(start: str) -> str:
    """The one block of text that begins so, or has a line that does."""
    [found] = [text for text in blocks("text") if f"\n{start}" in f"\n{text}"]
    return found


class Job:
    """The orchestrator, and the job that it runs."""

    def __init__(self, command: str, directory: Path, variables: dict[str, str]) -> None:
        self._log = directory / "job.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["bash", "-euc", command],
                cwd=directory,
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """What it printed until now."""
        return self._log.read_text()

    def losses(self) -> list[str]:
        """The losses of its steps until now, as they were printed."""
        return _STEP.findall(self.said())

    def trace_id(self) -> str:
        """The trace of it all, once it has ended well."""
        assert self._process.wait(400) == 0, self.said()
        [found] = re.findall(r"^trace ([0-9a-f]{32})$", self.said(), re.MULTILINE)
        return str(found)

    def end(self) -> None:
        """Whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


# Each statement that reads features has a number, and waits while somebody holds its lock.
_STOPPING = """
ALTER TABLE features RENAME TO stored;
CREATE SEQUENCE asked MINVALUE 0;
CREATE FUNCTION has_passed() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(nextval('asked')); RETURN true; END $$;
CREATE VIEW features AS SELECT * FROM stored WHERE (SELECT has_passed());
"""


class Stops:
    """Where the job waits."""

    def __init__(self, connection: psycopg.Connection, requests: tuple[int, ...]) -> None:
        self._connection = connection
        for number in requests:
            connection.execute("SELECT pg_advisory_lock(%s)", [number])

    def wait_for(self, request: int) -> None:
        """Until the job waits for that one."""
        waiting = (
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s"
        )
        until(lambda: self._connection.execute(waiting, [request]).fetchone())

    def go_on(self, request: int) -> None:
        """It has waited long enough."""
        self._connection.execute("SELECT pg_advisory_unlock(%s)", [request])


@dataclass
class Example:
    """A copy of the example, with endpoints of its own."""

    directory: Path
    database: str
    jaeger: str = "127.0.0.1:1"
    """Where Jaeger takes OTLP/gRPC."""
    tempo: str = "127.0.0.1:1"
    query: str = "127.0.0.1:1"
    """Where Jaeger answers."""
    variables: dict[str, str] = field(default_factory=dict)
    collector_address: str = field(default_factory=lambda: free_endpoints(1)[0])
    """Where everything is sent, over OTLP/HTTP."""
    service_address: str = field(default_factory=lambda: free_endpoints(1)[0])

    def mine(self, text: str) -> str:
        """The page's text with our endpoints in it."""
        for said, meant in (
            ("postgresql://localhost/features", self.database),
            ("localhost:4318", self.collector_address),
            ("localhost:8000", self.service_address),
            ("--port 8000", f"--port {self.service_address.rpartition(':')[2]}"),
            ("localhost:5317", self.jaeger),
            ("localhost:6317", self.tempo),
            ("localhost:16686", self.query),
        ):
            text = text.replace(said, meant)
        return text

    def run(self, text: str) -> str:
        """What a block of the page prints."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.mine(text)],
            cwd=self.directory,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _start(self, text: str, name: str) -> Process:
        *before, last = self.mine(text).splitlines()
        script = "\n".join([f"cd '{self.directory}'", *before, f"exec {last}"])
        log = self.directory / f"{name}.log"
        return Process(["bash", "-euc", script], environment(**self.variables), log)

    @contextlib.contextmanager
    def collector(self) -> Iterator[Process]:
        """The collector, ready."""
        process = self._start(block("cirron-otel collector"), "collector")
        try:
            process.wait_ready(f"http://{self.collector_address}/ready")
            yield process
        finally:
            process.stop()

    @contextlib.contextmanager
    def service(self) -> Iterator[Process]:
        """The feature service, ready; stopped, it sends what it has."""
        process = self._start(block("uvicorn"), "service")
        try:
            process.wait_ready(f"http://{self.service_address}/openapi.json")
            yield process
        finally:
            process.stop()

    @contextlib.contextmanager
    def job(self, command: str = "python train.py") -> Iterator[Job]:
        """The orchestrator at work; `command` is what it runs, as the page says it."""
        command = self.mine(block(f"python orchestrator.py {command}"))
        variables = environment(CIRRON_EXIT_TIMEOUT="120", **self.variables)
        job = Job(command, self.directory, variables)
        try:
            yield job
        finally:
            job.end()

    @contextlib.contextmanager
    def stops(self, *requests: int) -> Iterator[Stops]:
        """The job will wait, each time in its data_load, for its requests of these numbers.

        They count from 0. The database keeps the service waiting, until it is told to go on.
        """
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(_STOPPING)
            yield Stops(connection, requests)


@contextlib.contextmanager
def example(folder: Path, server: Postgres, **about: Any) -> Iterator[Example]:
    """The example with its table made."""
    database = server.new_database()
    made = Example(folder / "joined", database, **about)
    shutil.copytree(EXAMPLE, made.directory, ignore=shutil.ignore_patterns("__pycache__"))
    configuration = made.directory / "collector.yaml"
    configuration.write_text(made.mine(configuration.read_text()))
    setup = block("psql")
    assert setup.startswith("python -m pip install -r requirements.txt\n")
    made.run(setup.partition("\n")[2])
    yield made
