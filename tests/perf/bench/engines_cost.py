"""`report --engine duckdb` beside the report in Python, and beside a plain query of DuckDB."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.perf.scale.ranks import Job, SimulatedRank

from .measure import COMMAND, Run, run

FASTER_BAR = 10.0
FLOOR_BAR = 3.0
BUILDING_BAR = 1.5
MEMORY_BAR_MB = 1_000
_RANKS = 8
_STEP_S = 0.2307
"""The mean length of a simulated step, seconds."""
_SPANS = 5
"""The spans of a step."""


@dataclass(frozen=True)
class EngineSizes:
    """How much is measured."""

    spans: int = 5_000_000
    blocks: int = 3
    """How often the columns are read; the report in Python, and the conversions, run once."""


TINY = EngineSizes(6_000, 1)
"""Enough to see that everything runs."""


def section(sizes: EngineSizes = EngineSizes()) -> None:
    """Print the costs, the ratios and the peak memory."""
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as name:
        folder = Path(name)
        spans = write(folder / "in", sizes.spans)
        print(
            f"report of {spans:,} spans of {_RANKS} ranks: Parquet with DuckDB, a spool with Python"
        )
        columns = folder / "columns"
        _building(folder, columns, spans)
        output = folder / "report.json"
        floor, ours = [], []
        query = [sys.executable, "-m", "tests.perf.bench.engines_floor", str(columns)]
        report = [COMMAND, "report", "--json"]
        for _ in range(sizes.blocks):
            floor.append(run(query))
            ours.append(run([*report, "--engine", "duckdb", f"parquet:{columns}"], output))
        python = run([*report, folder / "in"], folder / "expected.json")
        if figures(output) != figures(folder / "expected.json"):
            raise AssertionError("the reports differ")
        print("  the same figures, to the digit")
        _printed("plain query", floor, spans)
        _printed("DuckDB", ours, spans)
        _printed("Python", [python], spans)
        _ratio("Python / DuckDB", [python], ours, FASTER_BAR, is_most=False)
        _ratio("DuckDB / plain query", ours, floor, FLOOR_BAR, is_most=True)
        peak = max(each.peak for each in ours) / 1e6
        above = ", ABOVE" if peak > MEMORY_BAR_MB else ""
        print(f"  peak memory, DuckDB {peak:5.0f} MB (bar {MEMORY_BAR_MB}{above})", flush=True)


def write(folder: Path, spans: int) -> int:
    """Write the spool of a job with about this many spans; return their number."""
    spool = folder / "spool"
    spool.mkdir(parents=True)
    seconds = spans / _SPANS / _RANKS * _STEP_S
    job = Job.of(_RANKS, seconds, 1, None, flush_s=60)
    written = 0
    for rank in job.present:
        for each in SimulatedRank(job, rank).batches():
            (spool / each.batch.name).write_bytes(each.batch.data)
            written += each.spans
    return written


def figures(path: Path) -> dict[str, Any]:
    """Return the report in a file, without its source."""
    report: dict[str, Any] = json.loads(path.read_text())
    del report["source"]
    return report


def _building(folder: Path, columns: Path, spans: int) -> None:
    """Print the cost of building the columns, beside that of a conversion to OTLP."""
    convert = [COMMAND, "convert", folder / "in", "--jobs", "1"]
    otlp = run([*convert[:3], folder / "out.binpb", *convert[3:]])
    shutil.rmtree(folder / "out.binpb", ignore_errors=True)
    (folder / "out.binpb").unlink(missing_ok=True)
    parquet = run([*convert[:3], f"parquet:{columns}", *convert[3:]])
    _printed("spool -> .binpb", [otlp], spans)
    _printed("spool -> Parquet", [parquet], spans)
    _ratio("Parquet / .binpb", [parquet], [otlp], BUILDING_BAR, is_most=True)


def _printed(label: str, runs: list[Run], spans: int) -> None:
    wall = statistics.median(each.wall_s for each in runs)
    cpu = statistics.median(each.cpu_s for each in runs)
    print(
        f"  {label:<24} {wall:7.2f} s, CPU {cpu:7.2f} s, {cpu / spans * 1e6:6.2f} µs a span",
        flush=True,
    )


def _ratio(label: str, ours: list[Run], theirs: list[Run], bar: float, *, is_most: bool) -> None:
    wall, cpu = (
        statistics.median(getattr(each, name) for each in ours)
        / statistics.median(getattr(each, name) for each in theirs)
        for name in ("wall_s", "cpu_s")
    )
    if is_most:
        note = f"bar {bar:g}{', ABOVE' if cpu > bar else ''}"
    else:
        note = f"bar at least {bar:g}{', BELOW' if cpu < bar else ''}"
    print(f"  {label:<24} {wall:7.2f} x, CPU {cpu:7.2f} x ({note})", flush=True)
