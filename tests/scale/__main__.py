"""`make scale`: ten minutes of 10,000 simulated ranks against a collector with a database.

It prints its progress, what was sent and stored, the CPU time and the memory of the collector, and
the rank that `diagnose` and `report` name, with the time that these commands take. It exits 1 if
anything is lost, or if that is not the straggler.

With `--keep DIR`, the database and each result are kept in that directory as they are reached. If
the command is interrupted, the same command continues after the last result: it sends the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cirron_otel.core.atomic_files import replace_file
from tests.collector.serving import serving
from tests.integration.spools import cirron_otel

from .ranks import Job
from .simulate import Tally, await_stored, requests_of, send, stored, target_of
from .usage import Usage

_STORED_S = 6 * 3600.0


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


class Sending:
    """Sends a job's requests to a collector until the database has them all."""

    def __init__(self, job: Job, url: str, results: Results) -> None:
        self._job, self._url, self._results = job, url, results
        self._begun = time.monotonic()
        self._accepted = int(results.values.get("accepted_requests", 0))

    def run(self, folder: Path, speed: float) -> Tally:
        """Send what is not accepted yet; return all that was sent, and keep the costs."""
        with serving(folder / "data", "--storage", self._url) as here:
            with Usage({"collector": lambda: [here.process.pid]}).watched() as usage:
                target = target_of(here.http)
                sent = send(requests_of(self._job), target, speed, self._progress, self._accepted)
                target.close()
                self._results.keep("accepted_requests", sent.requests, is_shown=False)
                seconds = time.monotonic() - self._begun
                await_stored(self._url, sent.batches, _STORED_S)
            costs = usage.to_json(sent.spans)["collector"]
            if self._accepted:  # the time of the earlier calls is not known
                del costs["cpu_us_per_span"]
            self._results.keep("sent", sent.to_json() | {"seconds": round(seconds, 1)})
            self._results.keep("collector", costs | {"exit_code": here.end()})
        return sent

    def _progress(self, tally: Tally, second: int) -> None:
        """Print how far it is, and keep it. A request may be sent twice, and is stored once."""
        took = time.monotonic() - self._begun
        share = max(second / self._job.seconds, 1e-9)
        left = f", about {took / share - took:,.0f} s left" if share > 0.01 else ""
        print(
            f"{100 * share:5.1f} %: {second} s of the job, {tally.recorded_spans:,} spans recorded,"
            f" {tally.spans:,} sent after {took:,.0f} s{left}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        if tally.requests > self._accepted:
            self._results.keep("accepted_requests", tally.requests, is_shown=False)


def sent_of(job: Job) -> Tally:
    """Return what is sent for a job, without sending it."""
    return send(requests_of(job), None)


def verdict(job: Job, url: str) -> dict[str, Any]:
    """Return the rank that the commands name, and the time that they take."""
    begun = time.monotonic()
    (run,) = cirron_otel("diagnose", url)["runs"]
    diagnosed = time.monotonic()
    report = cirron_otel("report", url)
    seconds = diagnosed - begun, time.monotonic() - diagnosed
    named = report["straggler"] and report["straggler"]["rank"]
    first = run["verdicts"][0]
    return {
        "straggler": job.straggler, "verdict": run["primary"], "diagnose": first["ranks"],
        "report": named, "window": run["window"], "diagnose_s": round(seconds[0], 1),
        "report_s": round(seconds[1], 1),
        "is_named": (first["ranks"], named) == ([job.straggler], job.straggler),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make scale")
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--speed", type=float, default=0.0)
    parser.add_argument("--budget", type=int, default=5, help="0: none")
    parser.add_argument("--flush", type=int, default=10)
    parser.add_argument("--scale", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", help="a database; an SQLite file by default")
    parser.add_argument("--keep", metavar="DIR", help="keep the results, and continue from them")
    given = parser.parse_args(arguments)
    job = Job.of(
        given.ranks, 60 * given.minutes, given.seed, given.budget or None, given.scale, given.flush
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        url = given.storage or f"sqlite:///{folder.resolve()}/runs.db"
        results = Results(folder / "result.json", job)
        if "collector" not in results.values:
            sent = Sending(job, url, results).run(folder, given.speed)
            results.keep("is_equal", stored(url).ids == sent.ids)
        elif "is_equal" not in results.values:
            results.keep("is_equal", stored(url).ids == sent_of(job).ids)
        if "verdict" not in results.values:
            results.keep("verdict", verdict(job, url))
        found = results.values
        is_right = found["is_equal"] and found["verdict"]["is_named"]
        return 0 if is_right and found["collector"]["exit_code"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
