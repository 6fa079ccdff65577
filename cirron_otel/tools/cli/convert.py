"""`cirron-otel convert`: convert between spools, batch files, OTLP files and Cirron protobuf."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ...errors import UsageError
from ..convert import tables
from ..convert.progress import BYTES
from ..present.formatting import count, printable, size
from . import output
from .parameters import (
    FormatChoice,
    PlacesCommand,
    from_option,
    json_option,
    layout_option,
    run_option,
    signal_of,
    signal_option,
)
from .progress import progress

if TYPE_CHECKING:
    from ..convert.report import Report


@click.command(
    cls=PlacesCommand, has_target=True, short_help="Convert a spool to OTLP, or OTLP to a spool."
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@from_option
@click.option(
    "--to",
    "target_format",
    type=FormatChoice(lambda: list(tables.TARGETS)),
    help="The format of DST, whatever its suffix.",
)
@signal_option
@layout_option
@run_option
@click.option(
    "--select",
    "expressions",
    metavar="KEY=VALUE",
    multiple=True,
    help="Convert only matching records: session=ID or a prefix of an ID, rank=N, epoch=N or"
    " epoch=A..B, name=NAME. May be given several times.",
)
@click.option(
    "--join",
    metavar="SPOOL",
    help="Attach the records to the scopes of SPOOL that were open in the same process and thread.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of worker processes; default: one per core.",
)
@json_option
def convert(
    source: str,
    target: str,
    source_format: str | None,
    target_format: str | None,
    signal: str,
    layout: str,
    run: str | None,
    expressions: tuple[str, ...],
    join: str | None,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Convert SRC to DST. SRC and DST may be - for stdin and stdout.

    A file is replaced completely or not at all; batches are added to a spool.
    """
    from ..convert.convert import ConvertRequest
    from ..convert.convert import convert as convert_request
    from ..convert.select import Selection

    if as_json and target == tables.STANDARD:
        raise UsageError(
            "--json and DST '-' both write to stdout: name a file for DST, or leave out --json"
        )
    request = ConvertRequest(
        source=source,
        target=target,
        source_format=source_format,
        target_format=target_format,
        layout=layout,
        select=Selection.parse(expressions) if expressions else None,
        run=run,
        jobs=jobs,
        join=join,
        signal=signal_of(signal, "layout", "jobs"),
    )
    # A bar would be drawn between the lines of a result on the same terminal.
    is_shown = target != tables.STANDARD or sys.stdout is None or not sys.stdout.isatty()
    with progress("reading", BYTES, is_shown=is_shown) as shown:
        report = convert_request(request, progress=shown)
    if as_json:
        output.document(report.to_json())
    elif target == tables.STANDARD:
        output.message(summary(report))
    else:
        output.result(summary(report))
    output.shortfalls(report)
    if report.backend is not None:
        losses = "; ".join(report.backend.not_kept)
        output.message(f"{report.backend.backend} never returns: {losses}")
    return report.exit_code


def summary(report: Report) -> str:
    """Return a summary of a conversion in one line."""
    parts = [
        f"{count(report.batches, 'batch', 'batches')} ({counts(report)})",
        f"{size(report.bytes_read)} read",
        f"{size(report.bytes_written)} written to {printable(report.target)}",
    ]
    if report.unchanged:
        parts.append(f"{count(report.unchanged, 'file')} already there")
    if report.duplicates:
        parts.append(f"{count(report.duplicates, 'duplicate')} omitted")
    return ", ".join(parts)


def counts(report: Report) -> str:
    """Return the records of a report, as in `173 spans, 105 marks, 24 snapshots`.

    For metrics, return the points, as in `152 points of 19 marks`.
    """
    if report.points is not None:
        return f"{count(report.points, 'point')} of {count(report.marks, 'mark')}"
    return ", ".join(
        (
            count(report.spans, "span"),
            count(report.marks, "mark"),
            count(report.snapshots, "snapshot"),
        )
    )
