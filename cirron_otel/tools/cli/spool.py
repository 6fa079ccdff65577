"""`cirron-otel spool`: inspect, verify, prune or recover a spool, or send its unsent batches."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from ...core.records.problems import ReadingProblem
from ..present.formatting import (
    count,
    duration,
    local_moment,
    numbers,
    printable,
    reason,
    size,
    wrapped,
)
from . import output, signals
from .convert import counts
from .parameters import json_option, spool_argument
from .spool_dead_letters import dead_letters
from .spool_prune import prune
from .spool_show import show

if TYPE_CHECKING:
    from ...core.analysis.summary import SessionSummary
    from ...core.run.spool_summary import SpoolSummary
    from ...core.spool.reader import SpoolReader
    from ...core.spool.recovery import Recovered
    from ...errors import CirronOtelError
    from ..convert.flush import TargetReport


@click.command(short_help="Close the scopes that dead processes left open.")
@spool_argument
@json_option
def recover(directory: str, as_json: bool) -> int:
    """Close the scopes that killed processes left open, as incomplete.

    Records that they had no time to seal are moved into the spool, and files that they were writing
    are removed. Running processes are not affected, and earlier recoveries are not repeated. Exit
    code 1 if a journal or a remainder is damaged.
    """
    from ...core.spool.recovery import find_recoverable
    from ...core.spool.recovery import recover as run

    paths = find_recoverable(directory)
    recoveries = run(paths)
    if as_json:
        output.document({"path": str(paths.spool), "recovered": to_json(recoveries)})
    else:
        output.result(f"{printable(str(paths.spool))}: {summary(recoveries)}")
        for done in recoveries:
            for name in (*done.saved, *([] if done.name is None else [done.name])):
                output.result(f"wrote {printable(name)}")
    return 1 if damages(recoveries) else 0


def summary(found: Sequence[Recovered]) -> str:
    """Return a summary of the recovery in one line."""
    from ...core.spool.oom_kills import kills_text
    from ...core.spool.remainder import Left

    if not found:
        return "nothing to recover"
    torn = sum(len(done.torn) for done in found)
    kills = max(done.oom_kills for done in found)
    saved = sum(len(done.saved) for done in found)
    gone = sum((done.lost for done in found), Left())
    lost = f" {gone.spans:,} spans and {gone.marks:,} marks lost," if gone != Left() else ""
    sealed = f" {count(saved, 'unsealed batch', 'unsealed batches')} sealed," if saved else ""
    return (
        f"{count(len(found), 'process that died', 'processes that died')}:"
        f" {count(sum(done.incomplete for done in found), 'open scope')} closed as incomplete,"
        f" {count(sum(done.closed for done in found), 'ended scope')} saved,"
        f"{sealed}{lost} {count(torn, 'unfinished file')} removed{kills_text(kills)}"
    )


def damages(found: Sequence[Recovered]) -> int:
    """Report the damaged journals and remainders, and return their number."""
    problems = [done.problem for done in found if done.problem]
    for problem in problems:
        output.message(f"set aside: {problem}")
    return len(problems)


def to_json(found: Sequence[Recovered]) -> list[dict[str, Any]]:
    """Return the recovered processes as JSON objects."""
    return [
        {
            "owner": done.owner,
            "session": done.session,
            "batch": done.name,
            "incomplete": done.incomplete,
            "closed": done.closed,
            "saved": list(done.saved),
            "lost": dict(done.lost.by_kind()),
            "oom_kills": done.oom_kills,
            "torn": list(done.torn),
            "problem": done.problem,
        }
        for done in found
    ]


_INTERRUPTED = 130


@click.command(short_help="Send the unsent batches.")
@spool_argument
@json_option
def flush(directory: str, as_json: bool) -> int:
    """Send the unsent batches once, to the targets that the environment specifies.

    These are OTEL_EXPORTER_OTLP_ENDPOINT, if it is set, and the Cirron platform, if there is an API
    key. Acknowledged batches are not sent again; scopes that dead processes left open are closed
    first. Each kind of failure is reported at once, and retried for up to a minute. Exit code 5 if
    a target fails, 1 if batches stay unsent.
    """
    from ..convert.flush import flush as run
    from .progress import progress

    stop, reported = threading.Event(), set[str]()

    def retries(error: CirronOtelError) -> None:
        if str(error) not in reported:
            reported.add(str(error))
            output.message(f"{error}; trying again")

    with signals.stopping(stop), progress("sending unsent batches", is_soon=True):
        report = run(
            directory, environ=os.environ, stop=stop, say=output.message, on_failure=retries
        )
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
            output.message(f"{target.target} reports: {target.message}")
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


_LONGEST_REASON = 400


@click.command(short_help="List sessions, counts, time span and health.")
@spool_argument
@json_option
def ls(directory: str, as_json: bool) -> int:
    """List sessions, ranks, counts, time span, and the health of the files."""
    from ...core.run.spool_summary import summarise
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
    """Describe the recorder by its version; a version of ours begins with that of cirron-sdk."""
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


_MAX_IN_DOCUMENT = 10_000


@click.command(short_help="Check the files, and list their errors.")
@spool_argument
@json_option
def verify(directory: str, as_json: bool) -> int:
    """Check the files of a spool, and list their errors; exit code 1 if there are any.

    Notes (about unusual data that is read without loss) are listed too; they are not errors.
    """
    from ...core.analysis.verify import verify_spool
    from ...core.spool.reader import SpoolReader

    reader = SpoolReader(directory)
    errors = notes = 0
    findings: list[ReadingProblem] = []
    for finding in verify_spool(reader):
        if finding.severity == "error":
            errors += 1
        else:
            notes += 1
        if not as_json:
            output.result(printable(str(finding)))
        elif len(findings) < _MAX_IN_DOCUMENT:
            findings.append(finding)
    path = str(reader.paths.spool)
    if as_json:
        output.document(
            {
                "path": path,
                "errors": errors,
                "notes": notes,
                "findings": [finding.to_json() for finding in findings],
                "findings_left_out": errors + notes - len(findings),
            }
        )
    else:
        output.result(f"{printable(path)}: {count(errors, 'error')}, {count(notes, 'note')}")
    return 1 if errors else 0


@click.group()
def spool() -> None:
    """Inspect, verify, prune or recover a spool, or send its unsent batches.

    DIR contains spool/ or .cirron/spool/, or is the spool itself; ./.cirron by default.
    """


for _command in (ls, show, verify, prune, recover, flush, dead_letters):
    spool.add_command(_command)
