"""The cost of importing a DGRR trace, beside its floor; the peak memory of its checks.

The floor unpacks the records and writes the marks with orjson.
"""

from __future__ import annotations

import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import orjson

from .measure import Case, interleave, peak_memory

BAR = 6.0
MEMORY_BAR_MB = 100
_COMMAND = Path(sys.executable).with_name("cirron-otel")
_RECORD = struct.Struct("<Q7dII")


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    records: int = 50_000
    blocks: int = 7
    large_records: int = 10_000_000
    """The records of the trace whose peak memory is measured."""


TINY = Sizes(2_000, 2, 4_000)
"""Enough to see that everything runs."""


def section(sizes: Sizes = Sizes()) -> None:
    """Print the cost of a record, and the peak memory."""
    print("DGRR -> spool, CPU time of one record")
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        _cost(Path(folder), sizes)
        _memory(Path(folder), sizes.large_records)


def _cost(folder: Path, sizes: Sizes) -> None:
    from cirron_otel.tools.convert.convert import ConvertRequest, convert

    path, spool = folder / "trace.dgrr", folder / "out"
    _train(path, sizes.records)

    def remove() -> None:
        shutil.rmtree(spool, ignore_errors=True)

    def conversion(_: int) -> None:
        convert(ConvertRequest(f"dgrr:{path}", str(spool)))

    conversion(1)
    batches = [orjson.loads(file.read_bytes()) for file in (spool / "spool").glob("*.json")]
    marks = [mark for batch in batches for mark in batch["marks"]]
    assert len(marks) == sizes.records
    records = path.read_bytes()[64:]

    def floor(_: int) -> None:
        for _fields in _RECORD.iter_unpack(records):
            pass
        for mark in marks:
            orjson.dumps(mark)

    cases = Case("floor", floor), Case("ours", conversion, prepare=remove)
    interleave(cases, sizes.records, sizes.blocks)
    lowest, ours = (each.cpu_us(sizes.records) for each in cases)
    pairs = zip(cases[1].cpu_seconds, cases[0].cpu_seconds, strict=True)
    ratio = statistics.median(ours_s / floor_s for ours_s, floor_s in pairs)
    print(f"  {'a training':<30} floor {lowest:6.2f} µs, ours {ours:6.2f} µs: "
          f"{ratio:5.2f} x floor (bar: {BAR:g})", flush=True)  # fmt: skip


def _memory(folder: Path, records: int) -> None:
    path, copy = folder / "large.dgrr", folder / "copy.dgrr"
    _train(path, records)
    shutil.copyfile(path, copy)
    for arguments in (("verify", str(path)), ("compare", "--a", str(path), "--b", str(copy))):
        peak = peak_memory("dgrr", *arguments)
        print(f"  peak memory, {arguments[0] + ',':<8} {path.stat().st_size / 1e6:8,.1f} MB"
              f" {peak / 1e6:6.0f} MB (bar: {MEMORY_BAR_MB})", flush=True)  # fmt: skip


def _train(path: Path, records: int) -> None:
    command = [_COMMAND, "dgrr", "train", "--steps", str(records), "--out", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
