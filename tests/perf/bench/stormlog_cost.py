"""The cost of importing a recording of Stormlog, beside Stormlog's own loader; peak memory.

The recordings are those of the testdata, repeated with later times and other scope ids. The floor
parses the lines and writes the marks with orjson. Stormlog's loader runs in its own environment.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.core.importers.stormlog.conftest import RECORDINGS
from tests.core.importers.stormlog.peers import STORMLOG
from tests.kit.environments import EnvironmentUnavailableError

from .measure import Case, interleave, peak_memory

BAR = 6.0
MEMORY_BAR_MB = 300
_SHAPES = {
    "samples of the CPU tracker": ("v039/cli_track/sink", "0.3.9"),
    "a simulated GPU, phases": ("v039/sim_gpu/sink", "0.3.9"),
    "torchrun, schema 4, phases": ("v043/distributed/sink_rank0", "0.4.3"),
}
_EXPORTED = "a simulated GPU, phases"
"""The shape that is also measured as a directory of two recordings: each event is found twice."""
_SEGMENT = "segment-000001.jsonl"
_LOADER = """
import sys, time
from stormlog.telemetry import load_telemetry_sessions
times = []
for _ in range(int(sys.argv[2])):
    start = time.process_time()
    load_telemetry_sessions(sys.argv[1])
    times.append(time.process_time() - start)
print(min(times))
"""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    events: int = 20_000
    blocks: int = 7
    large_events: int = 1_000_000
    """The events of the recordings whose peak memory is measured."""


TINY = Sizes(500, 2, 2_000)
"""Enough to see that everything runs."""


def section(sizes: Sizes = Sizes()) -> None:
    """Print the costs and the peak memory."""
    print("Stormlog -> spool, CPU time of one event")
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        for label, (place, version) in _SHAPES.items():
            path = Path(folder) / label / _SEGMENT
            path.parent.mkdir()
            count = repeated(RECORDINGS / place / _SEGMENT, path, sizes.events)
            _costs(label, path, count, version, sizes)
            if label == _EXPORTED:
                shutil.copyfile(path, path.with_name("export.jsonl"))
                _costs("  and its export beside it", path.parent, count, None, sizes)
        for form in ("segment", "array"):
            _memory(Path(folder), form, sizes.large_events)


def _costs(label: str, path: Path, count: int, version: str | None, sizes: Sizes) -> None:
    """Print the cost of an event of a recording, or of a directory of recordings of one run.

    `version` is the release that wrote it; None leaves Stormlog's own loader out.
    """
    from cirron_otel.tools.convert.convert import ConvertRequest, convert

    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    spool = files[0].parent.parent / f"{files[0].parent.name} {len(files)} out"

    def remove() -> None:
        shutil.rmtree(spool, ignore_errors=True)

    def conversion(_: int) -> None:
        convert(ConvertRequest(f"stormlog:{path}", str(spool)))

    conversion(1)
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    batches = [orjson.loads(file.read_bytes()) for file in (spool / "spool").glob("*.json")]
    marks = [mark for batch in batches for mark in batch["marks"]]
    assert len(marks) == count == len(lines) / len(files)

    def floor(_: int) -> None:
        for line in lines:
            orjson.loads(line)
        for mark in marks:
            orjson.dumps(mark)

    cases = Case("floor", floor), Case("ours", conversion, prepare=remove)
    interleave(cases, count, sizes.blocks)
    lowest, ours = (each.cpu_us(count) for each in cases)
    pairs = zip(cases[1].cpu_seconds, cases[0].cpu_seconds, strict=True)
    ratio = statistics.median(ours_s / floor_s for ours_s, floor_s in pairs)
    print(f"  {label:<30} floor {lowest:6.2f} µs, ours {ours:6.2f} µs: "
          f"{ratio:5.2f} x floor (bar: {BAR:g})", flush=True)  # fmt: skip
    if version is None:
        return
    try:
        python = STORMLOG[f"stormlog-{version}"].make()
    except EnvironmentUnavailableError as error:
        print(f"  {error}")
        return
    done = subprocess.run(
        [python, "-c", _LOADER, path, str(sizes.blocks)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    theirs = float(done.stdout) / count * 1e6
    print(f"  {'  its loader, ' + version:<30} {theirs:6.2f} µs: "
          f"ours is {ours / theirs:5.2f} x it (bar: 1)", flush=True)  # fmt: skip


def _memory(folder: Path, form: str, events: int) -> None:
    path = folder / ("large.json" if form == "array" else "large.jsonl")
    repeated(RECORDINGS / "v039/sim_gpu/sink" / _SEGMENT, path, events, is_array=form == "array")
    spool = folder / f"large-{form}"
    peak = peak_memory("convert", f"stormlog:{path}", str(spool))
    size = path.stat().st_size / 1e6
    print(f"  peak memory, {form + ',':<8} {size:8,.0f} MB {peak / 1e6:6.0f} MB"
          f" (bar: {MEMORY_BAR_MB})", flush=True)  # fmt: skip
    path.unlink()
    shutil.rmtree(spool)


def repeated(source: Path, target: Path, events: int, *, is_array: bool = False) -> int:
    """Write at least `events` events, repeated at later times; return their number."""
    records = [json.loads(line) for line in source.read_bytes().splitlines()]
    period = records[-1]["timestamp_ns"] - records[0]["timestamp_ns"] + 10**6
    count = 0
    with target.open("w") as file:
        number = 0
        while count < events:
            for record in records:
                text = json.dumps(_later(record, number, period), sort_keys=not is_array,
                                  indent=2 if is_array and number == 0 else None)  # fmt: skip
                before = "" if not is_array else "[\n  " if count == 0 else ",\n  "
                file.write(before + text + ("" if is_array else "\n"))
                count += 1
            number += 1
        file.write("\n]" if is_array else "")
    return count


def _later(record: dict[str, Any], number: int, period: int) -> dict[str, Any]:
    """The record of another repetition."""
    later = record | {"timestamp_ns": record["timestamp_ns"] + number * period}
    scope = record["metadata"].get("phase_scope")
    if scope is not None:
        parent = scope["parent_scope_id"]
        names = {
            "scope_id": f"{scope['scope_id']}-{number}",
            "parent_scope_id": None if parent is None else f"{parent}-{number}",
            "sequence": scope["sequence"] + number * 10**6,
        }
        later["metadata"] = record["metadata"] | {"phase_scope": scope | names}
    return later
