"""`cirron-otel demo`: a recorded training run to OTLP and back, with the tree and the numbers.

The recording is a real one (cirron-sdk 0.3.0, a small PyTorch run) and is part of the package.
"""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output
from .convert import counts
from .parameters import json_option
from .spool_show import trees
from .text import count, printable, size

if TYPE_CHECKING:
    from ..pipeline.report import Report

RECORDING = Path(__file__).parent / "recording"
_OTLP = "trace.jsonl"
_DEPTH = 3
_SPANS = 40


@click.command(short_help="A recorded run to OTLP and back.")
@click.option(
    "--output",
    "directory",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Keep the OTLP file and the spool made from it in DIR.",
)
@json_option
def demo(directory: str | None, as_json: bool) -> int:
    """Convert a recorded training run to OTLP and back, and show that nothing was lost."""
    with _place(directory) as place:
        there, back = _convert(place)
        is_equal = _same_batches(RECORDING, place)
        otlp_bytes = (place / _OTLP).stat().st_size
    if as_json:
        output.document(
            {
                "recording": str(RECORDING),
                "output": directory,
                "to_otlp": there.to_json(),
                "to_spool": back.to_json(),
                "equal": is_equal,
            }
        )
    else:
        _show_tree()
        for line in _numbers(there, back, otlp_bytes, is_equal) + _next(directory):
            output.result(line)
    return 0 if is_equal else 1


@contextlib.contextmanager
def _place(directory: str | None) -> Iterator[Path]:
    if directory is not None:
        path = Path(directory)
        _make(path)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="cirron-otel-demo-") as temporary:
        yield Path(temporary)


def _make(path: Path) -> None:
    from ..errors import TargetError

    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise TargetError(f"{path} cannot be made: {error.strerror or error}") from None


def _convert(place: Path) -> tuple[Report, Report]:
    from ..pipeline.convert import Request, convert

    otlp = str(place / _OTLP)
    there = convert(Request(source=str(RECORDING), target=otlp, jobs=1))
    back = convert(Request(source=otlp, target=str(place), target_format="spool", jobs=1))
    return there, back


def _same_batches(left: Path, right: Path) -> bool:
    """Whether two spools hold files of the same names with equal JSON values."""
    from .. import exactjson
    from ..spool.reader import SpoolReader

    values: list[dict[str, Any]] = [
        {batch.name: exactjson.loads(batch.data) for batch in SpoolReader(each)}
        for each in (left, right)
    ]
    one, other = values
    return one.keys() == other.keys() and all(
        exactjson.equal(value, other[name]) for name, value in one.items()
    )


def _show_tree() -> None:
    from ..spool.reader import SpoolReader
    from ..spool.tree import Limits, build_trees

    limits = Limits(spans=_SPANS, depth=_DEPTH)
    output.result("A recorded PyTorch run, its upper levels:")
    output.result("")
    output.show(*trees(build_trees(SpoolReader(RECORDING), limits=limits)))


def _numbers(there: Report, back: Report, otlp_bytes: int, is_equal: bool) -> list[str]:
    return [
        "",
        f"spool → OTLP   {count(there.batches, 'batch', 'batches')}, {counts(there)};"
        f" {size(there.bytes_read)} → {size(otlp_bytes)}",
        f"OTLP → spool   {count(back.batches, 'batch', 'batches')}, {counts(back)};"
        f" {size(otlp_bytes)} → {size(back.bytes_written) if back.written else 'there already'}",
        f"equal          {'yes: every value of every batch' if is_equal else 'NO'}",
    ]


def _next(directory: str | None) -> list[str]:
    place = printable(directory or "demo")
    lines = ["", "Try next:"]
    if directory is None:
        lines.append(f"  cirron-otel demo --output {place}")
    return [
        *lines,
        f"  cirron-otel spool show {place}",
        f"  cirron-otel convert {place}/{_OTLP} {place}/trace.binpb.zst",
        "  OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        " OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 \\",
        f"    cirron-otel export {place}",
    ]
