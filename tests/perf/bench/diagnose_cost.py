"""The cost of `diagnose` beside `report` on one spool, and its peak memory for longer runs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cirron_otel.core.analysis.verdicts.run_window import diagnose_batches
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.report import report_of
from cirron_otel.core.spool.reader import SpoolReader
from tests.core.analysis.verdicts.records import START, Rank, write_spool

from .measure import Case, interleave

BAR = 1.3
MEMORY_BAR = 1.2
_RANKS = 2
_PHASES = {"data_load": 2, "forward": 3, "backward": 4, "optimizer_step": 1}


@dataclass(frozen=True)
class DiagnoseSizes:
    """How much is measured."""

    steps: int = 3_000
    blocks: int = 5
    long_steps: int = 20_000
    """The steps of the longer run whose peak memory is measured; the other has half as many."""


TINY = DiagnoseSizes(200, 2, 400)
"""Enough to see that everything runs."""


def section(sizes: DiagnoseSizes = DiagnoseSizes()) -> None:
    """Print the ratio of the costs, and the ratio of the peak memory of two runs."""
    print("diagnose, beside report on the same spool, CPU time of one step")
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        _costs(recorded(Path(folder) / "short", sizes.steps), sizes)
        half, whole = (
            _peak_memory(recorded(Path(folder) / str(steps), steps))
            for steps in (sizes.long_steps // 2, sizes.long_steps)
        )
        print(f"  peak memory, {sizes.long_steps:,} steps {whole / 1e6:6.0f} MB:"
              f" {whole / half:5.2f} x that of half as many (bar: {MEMORY_BAR:g})")  # fmt: skip


def recorded(folder: Path, steps: int) -> Path:
    """Write a run of two ranks with this many steps, 500 in a batch."""
    return write_spool(folder, _parts(steps), run="1" * 32)


def _parts(steps: int) -> Iterator[Rank]:
    """Yield the batches one by one: the peak of a child begins at the memory of its parent."""
    for rank in range(_RANKS):
        for first in range(0, steps, 500):
            records = Rank(rank, pid=1 + rank, start=START + first * 10_000_000)
            for number in range(first, min(first + 500, steps)):
                records.step(number, _PHASES)
            yield records


def _costs(spool: Path, sizes: DiagnoseSizes) -> None:
    def report(_: int) -> None:
        reader = SpoolReader(spool)
        with open_run(reader, reader) as run:
            report_of(run)

    def diagnose(_: int) -> None:
        found = diagnose_batches(SpoolReader(spool), thresholds_of("run"))
        assert found.steps == min(sizes.steps, 10_000)

    cases = Case("report", report), Case("diagnose", diagnose)
    interleave(cases, sizes.steps, sizes.blocks)
    reported, diagnosed = (each.cpu_us(sizes.steps) for each in cases)
    pairs = zip(cases[1].cpu_seconds, cases[0].cpu_seconds, strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    print(f"  report {reported:7.2f} µs, diagnose {diagnosed:7.2f} µs:"
          f" {ratio:5.2f} x report (bar: {BAR:g})", flush=True)  # fmt: skip


def _peak_memory(spool: Path) -> int:
    """The largest resident set of the command, bytes."""
    command = Path(sys.executable).with_name("cirron-otel")
    process = subprocess.Popen([command, "diagnose", spool], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024
