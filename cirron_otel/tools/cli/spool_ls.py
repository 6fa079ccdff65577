"""`cirron-otel spool ls`: the sessions, the counts and the health of a spool."""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from . import output
from .parameters import json_option, spool_argument
from .text import count, duration, local_moment, numbers, printable, reason, size, wrapped

if TYPE_CHECKING:
    from ...core.analysis.summary import SessionSummary, SpoolSummary
    from ...core.spool.reader import SpoolReader

_LONGEST_REASON = 400


@click.command(short_help="Sessions, counts, time span, health.")
@spool_argument
@json_option
def ls(directory: str, as_json: bool) -> int:
    """Sessions, ranks, counts, time span, and the health of the files."""
    from ...core.analysis.summary import summarise
    from ...core.spool.reader import SpoolReader

    reader = SpoolReader(directory)
    summary = summarise(reader)
    if as_json:
        output.document(_to_json(summary, reader))
    else:
        for line in _lines(summary):
            output.result(line)
        if summary.sessions:
            output.result("")
        for session in summary.sessions:
            for line in _session(session):
                output.result(line)
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
        health = f"{summary.skipped:,} more skipped: `cirron-otel spool verify` lists them"
    files = f"{count(summary.files, 'file')} ({size(summary.bytes)}), {health}"
    lines = [f"{printable(summary.path)}: {files if summary.files or summary.skipped else 'empty'}"]
    if summary.first_ns is not None and summary.last_ns is not None:
        span = duration(summary.last_ns - summary.first_ns)
        ranks = f"; ranks: {numbers(summary.ranks)}" if summary.ranks else ""
        lines += wrapped(f"from {local_moment(summary.first_ns)}, {span}{ranks}", "", "  ")
    counts = [
        count(summary.session_count, "session"), count(summary.spans, "span"),
        count(summary.marks, "mark"), count(summary.snapshots, "snapshot"),
    ]  # fmt: skip
    lines.append(", ".join(counts))
    if summary.marks_unattached:
        lines[-1] += f"; {count(summary.marks_unattached, 'mark')} in no session"
    if summary.sdk_versions:
        recorders = ", ".join(map(_recorder, summary.sdk_versions))
        lines.append(f"recorded by {printable(recorders)}")
    return lines


def _recorder(version: str) -> str:
    """Describe the recorder by its version: one of ours begins with the cirron-sdk's version."""
    _, mark, our_version = version.partition("+cirron-otel.")
    return f"cirron-otel {our_version}" if mark else f"cirron-sdk {version}"


def _session(session: SessionSummary) -> Iterator[str]:
    known = session.start_ns is not None and session.end_ns is not None
    took = duration((session.end_ns or 0) - (session.start_ns or 0)) if known else "?"
    place = [
        f"{one} {numbers(values)}"
        for one, values in (("rank", session.ranks), ("pid", session.pids))
        if values
    ]
    head = [printable(session.id) if session.id is not None else "(none)", session.state]
    if place:
        head.append(", ".join(place))
    yield from wrapped("  ".join(head), "", "  ")
    if session.error is not None:
        yield from wrapped(reason(session.error[:_LONGEST_REASON]), "  ", "  ")
    counts = ", ".join([
        count(session.spans, "span"), count(session.marks, "mark"),
        count(session.snapshots, "snapshot"),
    ])  # fmt: skip
    yield from wrapped(f"{local_moment(session.start_ns)}, {took}; {counts}", "  ", "  ")
