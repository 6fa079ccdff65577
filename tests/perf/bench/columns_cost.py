"""The cost of building the columnar tables, beside `convert` of a spool to OTLP; peak memory."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import workload
from .measure import command, peak_memory

BAR = 1.5
MEMORY_BAR_MB = 1_000


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    bytes: int = 100_000_000
    """The size of the spool."""
    blocks: int = 5
    large_bytes: int = 1_000_000_000
    """The size of the spool whose peak memory is measured."""


TINY = Sizes(300_000, 1, 300_000)
"""Enough to see that everything runs."""


def section(sizes: Sizes = Sizes()) -> None:
    """Print the costs and the peak memory."""
    print("spool -> Parquet, beside spool -> .binpb")
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        spool = Path(folder) / "in"
        spans = workload.write(spool, sizes.bytes)
        for jobs in (2, 1):
            _ratio(spool, Path(folder), spans, jobs, sizes.blocks)
        _again(spool, Path(folder), spans, sizes.blocks)
        if sizes.large_bytes != sizes.bytes:
            shutil.rmtree(spool)
            workload.write(spool, sizes.large_bytes)
        _memory(spool, Path(folder), sizes.large_bytes)


def _ratio(spool: Path, folder: Path, spans: int, jobs: int, blocks: int) -> None:
    """Print the wall time with worker processes; the CPU time without, which is all of it."""
    otlp, parquet = [], []
    for _ in range(blocks):
        for target, times in ((f"{folder}/out.binpb", otlp), (f"parquet:{folder}/out", parquet)):
            wall, cpu, _ = command(["convert", str(spool), target, "--jobs", str(jobs)])
            times.append(cpu if jobs == 1 else wall)
        shutil.rmtree(folder / "out")
    floor, ours = (statistics.median(times) / spans * 1e6 for times in (otlp, parquet))
    ratio = ours / floor
    kind = "CPU time" if jobs == 1 else "wall time"
    print(
        f"  {kind}, --jobs {jobs:<12} OTLP {floor:6.2f} µs, Parquet {ours:6.2f} µs a span:"
        f" {ratio:.2f} x (bar {BAR:g}{', ABOVE' if ratio > BAR else ''})",
        flush=True,
    )


def _again(spool: Path, folder: Path, spans: int, blocks: int) -> None:
    """Print the CPU time of a conversion that adds nothing, and of the way back."""
    target = f"parquet:{folder}/out"
    command(["convert", str(spool), target])
    again = [command(["convert", str(spool), target, "--jobs", "1"])[1] for _ in range(blocks)]
    back = []
    for _ in range(blocks):
        back.append(command(["convert", target, f"{folder}/back"])[1])
        shutil.rmtree(folder / "back")
    for label, times in (("nothing to add, --jobs 1", again), ("back to a spool", back)):
        print(f"  CPU time, {label:<25} {statistics.median(times) / spans * 1e6:6.2f} µs a span")
    shutil.rmtree(folder / "out")


def _memory(spool: Path, folder: Path, size: int) -> None:
    target = f"parquet:{folder}/out"
    for label, arguments in (
        ("writing", (str(spool), target)),
        ("reading", (target, f"{folder}/back")),
    ):
        peak = peak_memory("convert", *arguments) / 1e6
        bar = f"(bar {MEMORY_BAR_MB}{', ABOVE' if peak > MEMORY_BAR_MB else ''})"
        print(f"  peak memory, {label}, {size / 1e6:5.0f} MB {peak:5.0f} MB {bar}", flush=True)
