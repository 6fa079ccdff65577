"""`cirron-otel spool ls`: what a spool holds, in numbers."""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import output
from .parameters import json_option, spool_argument
from .text import count, duration, moment, numbers, printable, size

if TYPE_CHECKING:
    from rich.table import Table

    from ..spool.reader import SpoolReader
    from ..spool.summary import SessionSummary, SpoolSummary

_RIGHT = ("duration", "spans", "marks", "snapshots")


@click.command(short_help="Sessions, counts, time span, health.")
@spool_argument
@json_option
def ls(directory: str, as_json: bool) -> int:
    """Sessions, ranks, counts, time span, and the health of the files."""
    from ..spool.reader import SpoolReader
    from ..spool.summary import summarise

    reader = SpoolReader(directory)
    summary = summarise(reader)
    if as_json:
        output.document(_to_json(summary, reader))
    else:
        for line in _lines(summary):
            output.result(line)
        if summary.sessions:
            output.result("")
            output.show(_table(summary.sessions))
        if summary.session_count > len(summary.sessions):
            output.message(f"the first {len(summary.sessions):,} sessions are listed")
    output.skipped(reader.findings, summary.skipped)
    return 1 if summary.skipped else 0


def _to_json(summary: SpoolSummary, reader: SpoolReader) -> dict[str, Any]:
    findings = [finding.to_json() for finding in reader.findings]
    return {**summary.to_json(), "findings": findings}


def _lines(summary: SpoolSummary) -> list[str]:
    health = "all of them readable"
    if summary.skipped:
        health = f"{summary.skipped:,} more skipped: `cirron-otel spool verify` says why"
    files = f"{count(summary.files, 'file')} ({size(summary.bytes)}), {health}"
    lines = [f"{printable(summary.path)}: {files if summary.files or summary.skipped else 'empty'}"]
    if summary.first_ns is not None and summary.last_ns is not None:
        span = duration(summary.last_ns - summary.first_ns)
        lines.append(
            f"from {moment(summary.first_ns)} UTC, {span}; ranks: {numbers(summary.ranks)}"
        )
    lines.append(
        f"{count(summary.session_count, 'session')}, {count(summary.spans, 'span')},"
        f" {count(summary.marks, 'mark')}, {count(summary.snapshots, 'snapshot')}"
        + (
            f"; {summary.marks_unattached:,} marks in no session"
            if summary.marks_unattached
            else ""
        )
    )
    if summary.sdk_versions:
        recorders = ", ".join(map(_recorder, summary.sdk_versions))
        lines.append(f"recorded by {printable(recorders)}")
    return lines


def _recorder(version: str) -> str:
    """What a version stands for: one of ours begins with the cirron-sdk that it is like."""
    _, mark, own = version.partition("+cirron-otel.")
    return f"cirron-otel {own}" if mark else f"cirron-sdk {version}"


def _table(sessions: list[SessionSummary]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    heads = ("session", "state", "rank", "pid", "start (UTC)", *_RIGHT)
    for head in heads:
        table.add_column(head, justify="right" if head in _RIGHT else "left", overflow="fold")
    for session in sessions:
        known = session.start_ns is not None and session.end_ns is not None
        cells = (
            printable(session.id) if session.id is not None else "(none)",
            session.state,
            numbers(session.ranks),
            numbers(session.pids),
            moment(session.start_ns),
            duration((session.end_ns or 0) - (session.start_ns or 0)) if known else "?",
            f"{session.spans:,}",
            f"{session.marks:,}",
            f"{session.snapshots:,}",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table
