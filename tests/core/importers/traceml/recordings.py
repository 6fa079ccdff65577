"""The recordings of TraceML 0.3.1 and 0.5.0, and helpers that convert them both ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from cirron_otel.core.importers.sealing import ImportedBatch
from cirron_otel.core.importers.traceml.envelopes import Envelope, envelopes_of
from cirron_otel.core.importers.traceml.framing import FrameDecoder, OversizedFrame, frame_of
from cirron_otel.core.importers.traceml.stream import TraceMLStream
from cirron_otel.core.records.problems import ReadingProblem
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.report import Report

RECORDINGS = Path(__file__).parents[3] / "testdata" / "traceml"
CASES = sorted(str(path.parent.relative_to(RECORDINGS)) for path in RECORDINGS.glob("*/*/frames"))
SHORT = "v050/ddp2_short"
LOGGED = "v031/ddp2_compute_straggler"


def frames_folder(case: str) -> Path:
    """The folder with the frames of each rank."""
    return RECORDINGS / case / "frames"


def beginning(case: str, folder: Path, size: int = 30_000) -> Path:
    """A folder with the first frames of each rank, about `size` bytes of each."""
    target = folder / "beginning"
    target.mkdir()
    for path in frames_folder(case).iterdir():
        data, at = path.read_bytes(), 0
        while at < min(size, len(data)):
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        (target / path.name).write_bytes(data[:at])
    return target


def run_folder(case: str, folder: Path, *, with_frames: bool = False) -> Path:
    """A run's folder as TraceML leaves it; the frames of the wire are not part of it."""
    source, target = RECORDINGS / case, folder / Path(case).name
    for path in sorted(source.rglob("*.zst")):
        copy = target / path.relative_to(source).with_suffix("")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(zstandard.ZstdDecompressor().decompress(path.read_bytes()))
    if with_frames:
        (target / "frames").mkdir()
        for path in frames_folder(case).iterdir():
            (target / "frames" / path.name).write_bytes(path.read_bytes())
    return target


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder, by its path."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def imported(path: Path, folder: Path, name: str = "imported") -> tuple[Path, Report]:
    """Convert a recording into a spool."""
    spool = folder / name
    return spool, convert(ConvertRequest(f"traceml:{path}", str(spool)))


def written(source: Path, folder: Path, name: str = "frames") -> tuple[dict[str, bytes], Report]:
    """Convert batches into frames; the files by name."""
    report = convert(ConvertRequest(str(source), f"traceml:{folder / name}"))
    return files_of(folder / name), report


def payloads(data: bytes) -> list[bytes | OversizedFrame]:
    """The payloads of the bytes of a connection."""
    return list(FrameDecoder().feed(data))


def envelopes(data: bytes) -> Iterator[Envelope]:
    """The messages of the bytes of a connection."""
    for payload in payloads(data):
        yield from envelopes_of(msgspec.msgpack.decode(payload))


def rows_of(files: Iterable[bytes]) -> list[tuple[Any, str, dict[str, Any]]]:
    """All rows of some streams, with their ranks and tables."""
    return [
        (envelope.meta.get("global_rank"), row.table, row.value)
        for data in files
        for envelope in envelopes(data)
        for row in envelope.rows
    ]


def streamed(
    frames: Iterable[bytes | OversizedFrame], rest: bytes = b""
) -> tuple[list[ImportedBatch], list[ReadingProblem]]:
    """The batches of a stream that ends, and the findings on it."""
    findings: list[ReadingProblem] = []
    stream = TraceMLStream("stream", findings.append)
    found = [batch for payload in frames for batch in stream.feed(payload)]
    return [*found, *stream.finish(rest)], findings


def stream_file(folder: Path, payloads_: Iterable[bytes], rest: bytes = b"") -> Path:
    """A file of frames."""
    path = folder / "rank0_pid7.frames"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(frame_of, payloads_)) + rest)
    return path


def meta(**fields: Any) -> dict[str, Any]:
    """The fields about a sender, as 0.3.1 sends them."""
    return {
        "rank": 0, "global_rank": 0, "local_rank": 0, "world_size": 1, "local_world_size": 1,
        "node_rank": 0, "hostname": "vm", "pid": 7, "sampler": "StepTimeSampler",
        "timestamp": 1000.5,
    } | fields  # fmt: skip


def envelope(table: str, *rows: Any, **fields: Any) -> dict[str, Any]:
    """A message with rows of one table."""
    return {"meta": meta(**fields), "body": {"tables": {table: list(rows)}}}


def event(milliseconds: Any, **fields: Any) -> dict[str, Any]:
    """The figures of an event on the CPU."""
    return {"cpu": {"is_gpu": False, "duration_ms": milliseconds, "n_calls": 1} | fields}


def step_row(step: Any, end: Any, **events: Any) -> dict[str, Any]:
    """A row of StepTimeTable; an event is named without TraceML's prefix."""
    named = {f"_traceml_internal:{name}": value for name, value in events.items()}
    return {"seq": 1, "timestamp": end, "step": step, "events": named}


def packed(*messages: Any) -> bytes:
    """The payload with some messages."""
    return msgspec.msgpack.encode(list(messages))
