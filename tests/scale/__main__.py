"""`make scale`: ten minutes of 10,000 simulated ranks against a collector with a database.

It prints what was sent and stored, the CPU time and the memory of the collector, and the rank that
`diagnose` and `report` name. It exits 1 if anything is lost, or if that is not the straggler.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.collector.serving import Serving, serving
from tests.integration.spools import cirron_otel

from .ranks import Job
from .simulate import await_stored, requests_of, send, stored, target_of

_TICKS = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 1.0
_STORED_S = 6 * 3600.0


class Usage:
    """The CPU time and the peak memory of a collector's processes."""

    def __init__(self) -> None:
        self.cpu_s: dict[int, float] = {}
        self.peak_mib: dict[int, float] = {}

    def look(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            self.cpu_s[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
            peak = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
            self.peak_mib[pid] = int(peak[0]) / 1024 if peak else 0.0


@contextmanager
def watched(here: Serving) -> Iterator[Usage]:
    """Measure the processes of a collector until it ends."""
    usage, stop = Usage(), threading.Event()
    second = here.translator()

    def watch() -> None:
        while not stop.wait(_INTERVAL_S):
            usage.look([here.process.pid, *([second] if second else [])])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        stop.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make scale")
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--speed", type=float, default=0.0)
    parser.add_argument("--budget", type=int, default=5, help="0: none")
    parser.add_argument("--flush", type=int, default=10)
    parser.add_argument("--scale", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", help="a database; a new SQLite file by default")
    given = parser.parse_args()
    job = Job.of(
        given.ranks, 60 * given.minutes, given.seed, given.budget, given.scale, given.flush
    )
    with tempfile.TemporaryDirectory() as folder:
        url = given.storage or f"sqlite:///{folder}/runs.db"
        with serving(Path(folder) / "data", "--storage", url) as here, watched(here) as usage:
            target = target_of(here.http)
            sent = send(requests_of(job), target, given.speed)
            target.close()
            print(json.dumps({"sent": sent.to_json()}), flush=True)
            await_stored(url, sent.batches, _STORED_S)
            code = here.end()
        is_equal = stored(url).ids == sent.ids
        figures = {
            "is_equal": is_equal,
            "exit_code": code,
            "cpu_s": [round(each, 1) for each in usage.cpu_s.values()],
            "cpu_us_per_exported_span": round(
                sum(usage.cpu_s.values()) / max(sent.spans, 1) * 1e6, 1
            ),
            "peak_mib": [round(each) for each in usage.peak_mib.values()],
        }
        print(json.dumps(figures), flush=True)
        (run,) = cirron_otel("diagnose", url)["runs"]
        report = cirron_otel("report", url)
        named = run["verdicts"][0]["ranks"], report["straggler"] and report["straggler"]["rank"]
        print(json.dumps({
            "straggler": job.straggler, "verdict": run["primary"], "diagnose": named[0],
            "report": named[1], "window": run["window"],
        }))  # fmt: skip
        is_named = named == ([job.straggler], job.straggler)
    return 0 if is_equal and is_named and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
