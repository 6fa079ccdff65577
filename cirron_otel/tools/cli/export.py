"""`cirron-otel export`: push a spool or an OTLP file to an OTLP endpoint."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import click

from ..convert.progress import BYTES
from ..present.formatting import added, count, size
from . import output, signals
from .convert import counts
from .parameters import (
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
    from ..convert.report import ExportReport

_INTERRUPTED = 130


@click.command(cls=PlacesCommand, short_help="Push to an OTLP endpoint.")
@click.argument("source", metavar="SRC")
@click.option(
    "--follow", is_flag=True, help="Continue to send batches as they arrive, until Ctrl-C."
)
@from_option
@signal_option
@layout_option
@run_option
@json_option
def export(
    source: str,
    follow: bool,
    source_format: str | None,
    signal: str,
    layout: str,
    run: str | None,
    as_json: bool,
) -> int:
    """Push SRC to OTEL_EXPORTER_OTLP_ENDPOINT.

    All OTEL_EXPORTER_OTLP_* variables and their _TRACES_ forms are honoured, or their _METRICS_
    forms with --signal metrics. With --follow, a cursor file records which batches were accepted:
    after a stop or an outage, export continues there.
    """
    from ..convert.export import ExportRequest
    from ..convert.export import export as export_request

    request = ExportRequest(
        source=source,
        source_format=source_format,
        layout=layout,
        follow=follow,
        run=run,
        signal=signal_of(signal, "layout"),
    )
    stop = threading.Event()
    with signals.stopping(stop), progress("reading", BYTES, is_shown=not follow) as shown:
        report = export_request(
            request, environ=os.environ, stop=stop, progress=shown, say=output.message
        )
    if as_json:
        output.document(report.to_json())
    else:
        output.result(_summary(report))
    output.shortfalls(report)
    if report.derived_ids:
        output.message(
            f"{count(report.derived_ids, 'span')} sent with derived ids: theirs are missing, zero,"
            " or too short or long, and backends refuse requests with such ids"
        )
    if report.message:
        output.message(f"the endpoint reports: {report.message}")
    if report.hint:
        output.message(f'{report.hint}; docs/backends.md, "Old runs in Tempo", describes a remedy')
    if stop.is_set():
        output.message("interrupted")
        return _INTERRUPTED
    return report.exit_code


def _summary(report: ExportReport) -> str:
    """Describe an export in one line; the sent, recorded and synthetic spans add up."""
    if report.is_translated:
        content = f"{count(report.batches, 'batch', 'batches')} ({counts(report)})"
    else:
        content = count(report.messages, "message")
    unit = "span" if report.points is None else "point"
    return (
        f"{content}, {size(report.bytes_written)} sent to {report.target}:"
        f" {count(report.accepted, unit)} accepted, {report.rejected:,} rejected"
        + added(report.spans, report.synthetic)
    )
