"""Traces of the testdata, traces that are made here, and a slow definition of the checks."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from cirron_otel.core.importers.dgrr.importing import TraceImport
from cirron_otel.core.importers.dgrr.layout import TraceFinding
from cirron_otel.core.importers.sealing import ImportedBatch
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert.trace_files import TraceFile

RECORDINGS = Path(__file__).parents[3] / "testdata" / "dgrr"
FILES = sorted(RECORDINGS.glob("*.dgrr"))
CLEAN = RECORDINGS / "clean_100.dgrr"
DRIFT = RECORDINGS / "diverge_ulp_from_37.dgrr"
DAMAGED = RECORDINGS / "bitflip_rec50_loss.dgrr"
ANSWERS: dict[str, Any] = json.loads((RECORDINGS / "answers.json").read_text())
NAN = struct.unpack("<d", bytes.fromhex("010000000000f07f"))[0]
"""A signalling NaN."""

Fields = tuple[int, float, float, float, float, float, float, float]


def record(*fields: Any, pad: int = 0) -> bytes:
    """A record of the eight fields before its CRC."""
    start = struct.pack("<Qddddddd", *fields)
    return start + struct.pack("<II", zlib.crc32(start), pad)


def trace(
    records: list[bytes], *, count: int | None = None, file_crc: int | None = None, **more: Any
) -> bytes:
    """A file with a valid header."""
    body = b"".join(records)
    start = struct.pack(
        "<4sHHQQdI", b"DGRR", 1, more.get("pad0", 0), more.get("seed", 7),
        len(records) if count is None else count, more.get("rate", 0.5),
        zlib.crc32(body) if file_crc is None else file_crc,
    )  # fmt: skip
    end = struct.pack("<Q16s", more.get("created_at", 1_700_000_000), more.get("reserved", b""))
    return start + struct.pack("<I", zlib.crc32(start)) + end + body


def chain(count: int, first: int = 0) -> list[bytes]:
    """Records whose parameters continue each other."""
    parameters = [(i / 3, -i / 7) for i in range(count + 1)]
    return [
        record(first + i, *parameters[i], -2 / 3, 2 / 7, *parameters[i + 1], 1 / (i + 1))
        for i in range(count)
    ]


SMALL = trace(chain(2))
ODD = trace(
    [record(2**64 - 1, NAN, -0.0, 5e-324, float("inf"), float("-inf"), 1e308, NAN, pad=9)],
    pad0=3, seed=2**64 - 1, rate=NAN, created_at=2**64 - 1, reserved=bytes(range(16)),
) + b"a tail"  # fmt: skip


def slow_findings(data: bytes) -> list[tuple[str, int | None]]:
    """The findings on a file, by the definition: no chunk, no shortcut."""
    if data[:4] != b"DGRR":
        return [("magic", None)]
    if len(data) < 6 or data[4:6] != b"\1\0":
        return [("version", None)]
    ends = {
        "_pad0": 8, "seed": 16, "step_count": 24, "learning_rate": 32, "file_crc32": 36,
        "header_crc32": 40, "created_at": 48, "_reserved": 64,
    }  # fmt: skip
    for name, end in ends.items():
        if len(data) < end:
            return [(name, None)]
    found: list[tuple[str, int | None]] = []
    count, file_crc, header_crc = (
        struct.unpack_from(form, data, at)[0] for form, at in (("<Q", 16), ("<I", 32), ("<I", 36))
    )
    if zlib.crc32(data[:36]) != header_crc:
        found.append(("header_crc32", None))
    whole = (len(data) - 64) // 72
    for number in range(whole):
        this = data[64 + 72 * number : 136 + 72 * number]
        last = data[72 * number - 8 : 64 + 72 * number]
        step = struct.unpack_from("<Q", this)[0]
        if number == 0:
            if step not in (0, 1):
                found.append(("step_id", 0))
        else:
            if step != struct.unpack_from("<Q", last)[0] + 1:
                found.append(("step_id", number))
            if this[8:16] != last[40:48]:
                found.append(("w_before", number))
            if this[16:24] != last[48:56]:
                found.append(("b_before", number))
        if zlib.crc32(this[:64]) != struct.unpack_from("<I", this, 64)[0]:
            found.append(("record_crc32", number))
    if len(data) != 64 + 72 * count:
        found.append(("step_count", min(whole, count)))
    if zlib.crc32(data[64:]) != file_crc:
        found.append(("file_crc32", None))
    return found


def opened(data: bytes) -> TraceFile:
    """A trace in memory."""
    return TraceFile("memory", io.BytesIO(data), len(data))


def batches_of(data: bytes) -> list[ImportedBatch]:
    """The batches of a trace."""
    ignored: list[TraceFinding] = []
    return list(TraceImport(opened(data), sha256(data).digest(), ignored.append).batches())


def damaged_copies(data: bytes) -> Iterator[bytes]:
    """A trace with each of its bits flipped, and cut to each length."""
    for bit in range(8 * len(data)):
        copy = bytearray(data)
        copy[bit // 8] ^= 1 << bit % 8
        yield bytes(copy)
    for length in range(len(data)):
        yield data[:length]


def is_trace(data: bytes) -> bool:
    """Whether a file has the magic and the version."""
    return data[:6] == b"DGRR\1\0"


def command(*arguments: object) -> tuple[int, str, str]:
    """Run `cirron-otel`: its exit code, stdout and stderr."""
    out, problems = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(problems):
        code = run_command([str(each) for each in arguments])
    return code, out.getvalue(), problems.getvalue()


def dgrr(*arguments: object) -> tuple[int, Any]:
    """Run `cirron-otel dgrr … --json`: its exit code and document; None if there is none."""
    code, out, _ = command("dgrr", *arguments, "--json")
    return code, json.loads(out) if out else None
