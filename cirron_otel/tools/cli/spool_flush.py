"""`cirron-otel spool flush`: send the unsent batches of a spool."""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import click

from . import output, signals
from .convert import counts
from .parameters import json_option, spool_argument
from .spool_recover import damages, summary, to_json
from .text import count, printable, size

if TYPE_CHECKING:
    from ...core.delivery.flush import TargetReport

_INTERRUPTED = 130


@click.command(short_help="Send what is left unsent.")
@spool_argument
@json_option
def flush(directory: str, as_json: bool) -> int:
    """Send what is left unsent, once, to where the environment says.

    By OTLP where an OTEL_EXPORTER_OTLP_ENDPOINT is set, to the Cirron platform where there is an
    API key. What was acknowledged is not sent again; what processes that died left open is closed
    first. Exit code 5 where a target fails, 1 where something stays unsent.
    """
    from ...core.delivery.flush import flush as run

    stop = threading.Event()
    with signals.stopping(stop):
        report = run(directory, environ=os.environ, stop=stop, say=output.message)
    path = str(report.paths.spool)
    if as_json:
        targets = [target.to_json() for target in report.targets]
        recovered = to_json(report.recovered)
        output.document({"path": path, "recovered": recovered, "targets": targets})
    else:
        output.result(f"{printable(path)}: {summary(report.recovered)}")
        for target in report.targets:
            output.result(_line(target))
    damages(report.recovered)
    for target in report.targets:
        output.shortfalls(target)
        if target.message:
            output.message(f"{target.target} says: {target.message}")
        if target.failure:
            output.error(target.failure)
    if stop.is_set():
        output.message("interrupted")
        return _INTERRUPTED
    return report.exit_code


def _line(target: TargetReport) -> str:
    files = f", {count(target.files, 'snapshot file')}" if target.files else ""
    return (
        f"{count(target.batches, 'batch', 'batches')} ({counts(target)}){files},"
        f" {size(target.bytes_written)} sent to {printable(target.target)};"
        f" {count(target.left, 'batch', 'batches')} left"
    )
