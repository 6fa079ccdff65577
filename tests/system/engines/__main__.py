"""`python -m tests.system.engines [SPANS]`: the report of generated spans by all four engines.

Prints whether the documents are equal, and what each engine needs: the CPU time of the command with
the processes that it starts, that of the server, and the command's wall time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.backends import postgres
from tests.kit.generators.trees import long_training
from tests.perf.bench.measure import COMMAND

from .spark import PYSPARK, ROOT, cluster

RANKS, STEPS, SPANS_A_STEP = 8, 1000, 5
CLI = "import sys; from cirron_otel.tools.cli import main; sys.exit(main())"
_TICKS = os.sysconf("SC_CLK_TCK")
_ENDED_S = 60.0


class Cost(NamedTuple):
    """The costs of a report."""

    document: dict[str, Any]
    wall_s: float
    cpu_s: float
    """Of the command and its processes; for Spark, the driver is one."""
    server_s: float
    peak_mb: float
    """The largest resident set of the command's processes."""


def reported(
    command: Sequence[str | Path],
    arguments: Sequence[str | Path],
    folder: Path,
    server: Callable[[], float] = lambda: 0.0,
    variables: Mapping[str, str] | None = None,
) -> Cost:
    """Run a report. Raises AssertionError if it fails."""
    before, start = server(), time.perf_counter()
    output = folder / "report.json"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, "report", *arguments, "--json"], stdout=file,
            env={**os.environ, **(variables or {})},
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, process.returncode
    wall = time.perf_counter() - start
    document = json.loads(output.read_bytes())
    del document["source"]
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(document, wall, cpu, server() - before, usage.ru_maxrss / 1000)


def cpu_of(pids: Sequence[int]) -> float:
    """The CPU time of servers and their children that have ended, which are waited for."""
    deadline = time.monotonic() + _ENDED_S
    while time.monotonic() < deadline and any(map(_is_working, pids)):
        time.sleep(0.2)
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / _TICKS


def _is_working(pid: int) -> bool:
    """Whether a server has a child for a client: an executor, or a process of PostgreSQL."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if b"CoarseGrainedExecutorBackend" in command or b"127.0.0.1(" in command:
                return True
    return False


def generate(folder: Path, spans: int) -> None:
    """Write a spool of about that many spans, and its columnar tables."""
    epochs = max(spans // (RANKS * STEPS * SPANS_A_STEP), 1)
    (folder / "s" / "spool").mkdir(parents=True)
    for name, data in long_training(RANKS, STEPS, epochs):
        (folder / "s" / "spool" / name).write_bytes(data)
    subprocess.run([COMMAND, "convert", folder / "s", f"parquet:{folder / 'c'}"], check=True)


def main(spans: int) -> int:
    """Compare the engines; return 1 if a document differs."""
    with tempfile.TemporaryDirectory(prefix="engines-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        generate(folder, spans)
        columns = f"parquet:{folder / 'c'}"
        costs = {"python": reported([COMMAND], [folder / "s"], folder)}
        print(f"{costs['python'].document['spans']:,} spans", flush=True)
        show("python", costs["python"], costs["python"])
        shutil.rmtree(folder / "s")
        costs["duckdb"] = reported([COMMAND], [columns, "--engine", "duckdb"], folder)
        show("duckdb", costs["duckdb"], costs["python"])
        with postgres.postgres() as server:
            pids = [server.process.pid]
            costs["postgresql"] = reported(
                [COMMAND], [columns, "--engine", server.new_database()], folder,
                lambda: cpu_of(pids),
            )  # fmt: skip
        show("postgresql", costs["postgresql"], costs["python"])
        (folder / "spark").mkdir()
        with cluster(folder / "spark", "3g", "2g", "2g", is_small=False) as spark:
            processes = [each.pid for each in spark.processes]
            costs["spark"] = reported(
                [PYSPARK.python, "-c", CLI], [columns, "--engine", spark.url], folder,
                lambda: cpu_of(processes), spark.variables | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        show("spark", costs["spark"], costs["python"])
    return any(each.document != costs["python"].document for each in costs.values())


def show(name: str, cost: Cost, reference: Cost) -> None:
    """Print a line."""
    is_equal = "equal" if cost.document == reference.document else "DIFFERENT"
    print(
        f"  {name:<12}{is_equal:<11}{cost.cpu_s:7.1f} s CPU, server {cost.server_s:7.1f} s,"
        f" wall {cost.wall_s:7.1f} s, peak {cost.peak_mb:5.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000))
