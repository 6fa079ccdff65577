"""`make scale`: ten minutes of 10,000 simulated ranks through an agent, Kafka, collectors and a
PostgreSQL.

All stages run at the same time, on this machine. The ranks send as fast as the agent accepts
requests, or `--speed` seconds of the job in a second. The command prints its progress with the
memory of each stage, then what was sent and stored, the CPU time and the peak memory of each stage,
the rank that `diagnose` and `report` name, and what these commands use: they run at the same time.
At last, 1, 2 and 3 collectors store the batches of a sixteenth of the ranks. It exits 1 if anything
is lost, or if the rank is not the straggler.

With `--keep DIR`, the data of all stages and each result are kept in that directory. If the command
is interrupted, the same command continues after the last result: it sends the rest. Every user has
to be able to reach the directory, because PostgreSQL does not run as root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cirron_otel.core.atomic_files import replace_file
from tests.kit.backends.kafka import Kafka, kafka
from tests.kit.backends.postgres import Postgres, postgres
from tests.system.kafka.members import AGENT, Otelcol, Topics
from tests.tools.conftest import COMMAND

from .chain import (
    PARTITIONS,
    Storing,
    consume,
    fill,
)
from .ranks import Job
from .simulate import (
    Tally,
    await_stored,
    requests_of,
    send,
    stored,
    target_of,
)
from .usage import Usage, joined, per_span

_STORED_S = 6 * 3600.0
_SHARE_OF_RANKS = 16
"""The throughput of some collectors is measured with one of this many ranks."""


class Results:
    """The results so far, in a file that is replaced after each of them."""

    def __init__(self, path: Path, job: Job) -> None:
        """Read the results of an earlier call for the same job; AssertionError for another job."""
        self._path = path
        self.values: dict[str, Any] = {"job": str(job)}
        if path.exists():
            self.values = json.loads(path.read_text())
            if self.values["job"] != str(job):
                raise AssertionError(f"{path} has results of {self.values['job']}, not of {job}")

    def keep(self, name: str, value: Any, *, is_shown: bool = True) -> None:
        """Keep a result, and print it."""
        self.values[name] = value
        replace_file(self._path, json.dumps(self.values, indent=1).encode())
        if is_shown:
            print(json.dumps({name: value}), flush=True)


class Chain:
    """The broker and the server of a run, with their data below a folder."""

    def __init__(self, folder: Path, broker: Kafka, server: Postgres) -> None:
        self.folder, self.broker, self.server = folder, broker, server

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> Iterator[Chain]:
        """Start both, and end them after the block."""
        directory = folder / "kafka"
        directory.mkdir(exist_ok=True)
        with kafka(directory) as broker, postgres(folder / "postgres") as server:
            yield cls(folder, broker, server)


class Sending:
    """Sends a job's requests to an agent until the database has all batches."""

    def __init__(self, job: Job, chain: Chain, url: str, collectors: int, results: Results) -> None:
        self._job, self._url, self._results = job, url, results
        self._begun = time.monotonic()
        self._accepted = int(results.values.get("accepted_requests", 0))
        self._earlier = results.values.get("costs", {})
        self._earlier_s = float(results.values.get("seconds", 0.0))
        self._topics = Topics(chain.broker, "simulated", PARTITIONS)
        self._storing = Storing(
            collectors, self._topics, chain.server, url, chain.folder / "storing"
        )
        self._agent = Otelcol(AGENT, chain.folder / "agent", self._topics.settings())
        own = {
            "ranks": lambda: [os.getpid()],
            "agent": lambda: [self._agent.backend.process.pid],
        }
        self._usage = Usage(own | self._storing.stages)

    def run(self, speed: float) -> Tally:
        """Send what is not accepted yet; return all that was sent, and keep the costs."""
        try:
            with self._usage.watched():
                self._storing.start()
                target = target_of(self._agent.backend.otlp_http)
                requests = requests_of(self._job)
                sent = send(requests, target, speed, self._progress, self._accepted)
                target.close()
                self._progress(sent, round(self._job.seconds))
                await_stored(self._url, sent.batches, _STORED_S)
                self._usage.look(is_last=True)
                self._keep_costs()
        finally:
            self._agent.stop()
            self._storing.stop()
        costs = per_span(self._results.values["costs"], sent.spans)
        self._results.keep("sent", sent.to_json() | {"messages": self._topics.end()})
        self._results.keep("stages", costs | {"seconds": self._results.values["seconds"]})
        return sent

    def _progress(self, tally: Tally, second: int) -> None:
        """Print how far it is, and keep it. A request may be sent twice, and is stored once."""
        took = time.monotonic() - self._begun
        share = max(second / self._job.seconds, 1e-9)
        print(
            f"{100 * share:5.1f} %: {second} s of the job, {tally.recorded_spans:,} spans recorded,"
            f" {tally.spans:,} sent after {took:,.0f} s; MiB: {self._usage.now_mib}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        if tally.requests > self._accepted:
            self._results.keep("accepted_requests", tally.requests, is_shown=False)
            memory = {"second": second, **self._usage.now_mib}
            self._results.keep(
                "memory", [*self._results.values.get("memory", []), memory], is_shown=False
            )
        self._keep_costs()

    def _keep_costs(self) -> None:
        costs = joined(self._earlier, self._usage.to_json())
        self._results.keep("costs", costs, is_shown=False)
        seconds = self._earlier_s + time.monotonic() - self._begun
        self._results.keep("seconds", round(seconds, 1), is_shown=False)


def sent_of(job: Job) -> Tally:
    """Return what is sent for a job, without sending it."""
    return send(requests_of(job), None)


class Measured:
    """A command with `--json` whose CPU time and peak memory are measured."""

    def __init__(self, folder: Path, name: str, url: str) -> None:
        """Start the command."""
        self._name, self._output = name, folder / f"{name}.json"
        self._begun = time.monotonic()
        with self._output.open("wb") as file:
            self._process = subprocess.Popen([COMMAND, name, url, "--json"], stdout=file)

    def result(self) -> tuple[Any, dict[str, Any]]:
        """Wait for the command; return its document, and what it has used."""
        _, status, used = os.wait4(self._process.pid, 0)
        if status:
            raise AssertionError(f"{self._name} ended with {os.waitstatus_to_exitcode(status)}")
        return json.loads(self._output.read_bytes()), {
            "cpu_s": round(used.ru_utime + used.ru_stime, 1),
            "seconds": round(time.monotonic() - self._begun, 1),
            "peak_mib": round(used.ru_maxrss / 1024),
        }


def verdict(job: Job, url: str, folder: Path) -> dict[str, Any]:
    """Return the rank that the commands name, and what they use."""
    commands = [Measured(folder, name, url) for name in ("diagnose", "report")]
    (diagnosis, of_diagnose), (report, of_report) = (each.result() for each in commands)
    (run,) = diagnosis["runs"]
    named = [_stragglers(each) for each in (run, report)]
    return {
        "straggler": job.straggler, "status": run["status"], "diagnose": named[0],
        "report": named[1], "spans": report["spans"], "ranks": len(report["ranks"]),
        "costs": {"diagnose": of_diagnose, "report": of_report},
        "is_named": named == [[job.straggler], [job.straggler]],
    }  # fmt: skip


def _stragglers(document: dict[str, Any]) -> list[int]:
    """Return the ranks of the first finding on a slow rank."""
    kinds = (each for each in document["findings"] if each["kind"].endswith("STRAGGLER"))
    found: dict[str, Any] = next(kinds, {"ranks": []})
    return list(found["ranks"])


def throughput(job: Job, chain: Chain, counts: Sequence[int]) -> dict[str, Any]:
    """Return the figures of each of these numbers of collectors that store the same topic."""
    folder = chain.folder / "throughput"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    topics = Topics(chain.broker, f"throughput-{time.time_ns()}", PARTITIONS)
    sent, filled = fill(job, topics, chain.broker, folder / "agent")
    found = []
    for count in counts:
        group = folder / f"with-{count}-{time.time_ns()}"
        url, figures = consume(count, sent, topics, chain.server, group)
        chain.server.drop_database(url)
        found.append(figures)
        print(json.dumps(figures), flush=True)
    is_equal = all(each["is_equal"] for each in found)
    return {"filled": filled, "stored": found, "is_equal": is_equal}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make scale")
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--speed", type=float, default=0.0)
    parser.add_argument("--budget", type=float, default=0.5, help="0: none")
    parser.add_argument("--flush", type=int, default=30)
    parser.add_argument("--scale", type=int, default=20, help="1: 4.5 steps a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--collectors", type=int, default=3)
    parser.add_argument("--throughput", type=int, nargs="*", default=[1, 2, 3], metavar="N")
    parser.add_argument("--keep", metavar="DIR", help="keep the results, and continue from them")
    given = parser.parse_args(arguments)
    job = Job.of(
        given.ranks, 60 * given.minutes, given.seed, given.budget or None, given.scale, given.flush
    )
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)
        folder = Path(given.keep or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        results = Results(folder / "result.json", job)
        with Chain.running(folder) as chain:
            return 0 if run(job, chain, given, results) else 1


def run(job: Job, chain: Chain, given: argparse.Namespace, results: Results) -> bool:
    """Do what the results lack; return whether they are right."""
    found = results.values
    if "database" not in found:
        name = chain.server.new_database().rpartition("/")[2]
        results.keep("database", name, is_shown=False)
    url = chain.server.url(found["database"])
    if "stages" not in found:
        sent = Sending(job, chain, url, given.collectors, results).run(given.speed)
        results.keep("is_equal", stored(url).ids == sent.ids)
    elif "is_equal" not in found:
        results.keep("is_equal", stored(url).ids == sent_of(job).ids)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results.keep("simulation_peak_mib", round(peak))
    if "verdict" not in found:
        results.keep("verdict", verdict(job, url, chain.folder))
    if "throughput" not in found:
        some = Job.of(
            max(job.ranks // _SHARE_OF_RANKS, 1), job.seconds, job.seed, job.budget, job.scale,
            job.flush_s,
        )  # fmt: skip
        results.keep("throughput", throughput(some, chain, given.throughput))
    return all((found["is_equal"], found["verdict"]["is_named"], found["throughput"]["is_equal"]))


if __name__ == "__main__":
    sys.exit(main())
