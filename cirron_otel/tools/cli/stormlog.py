"""`cirron-otel stormlog`: the sessions and timelines of Stormlog's recordings, and their checks."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ...errors import InputError
from ..convert.tables import STANDARD
from ..present.formatting import count, duration, local_moment, printable
from ..present.tables import rows_table
from . import output
from .parameters import json_option

if TYPE_CHECKING:
    from ...core.importers.stormlog.annotations import Annotation
    from ...core.importers.stormlog.ledger import CaptureSession
    from ...core.importers.stormlog.session_timelines import SessionTimeline
    from ...core.records.problems import ReadingProblem

F = TypeVar("F", bound=Callable[..., Any])

_MAX_IN_DOCUMENT = 10_000
_path_argument: Callable[[F], F] = click.argument("path", metavar="PATH")


class _Place(NamedTuple):
    """A recording that a command reads."""

    path: Path
    spool: Path | None = None
    """The spool that the recording was made from."""

    def annotations(self) -> Iterator[Annotation]:
        """Yield the texts in the marks of the spool. The recording itself contains none."""
        if self.spool is None:
            return
        from ... import exactjson
        from ...core.importers.stormlog.annotations import annotations_of
        from ...core.spool.reader import SpoolReader

        for file in SpoolReader(self.spool, on_finding=_ignore):
            yield from annotations_of(exactjson.loads(file.data))


@contextlib.contextmanager
def _local(path: str, findings: _Findings) -> Iterator[_Place]:
    """Yield a recording; a spool is first written in Stormlog's form, and a pipe to a file."""
    if _is_spool(path):
        from ...core.temporary import temporary_folder
        from ..convert.convert import ConvertRequest, convert

        with temporary_folder() as folder:
            report = convert(ConvertRequest(path, f"stormlog:{folder / 'recording'}"))
            for finding in report.skipped:
                findings.add(finding)
            yield _Place(folder / "recording", Path(path))
        return
    from ..convert.input_files import repeatable_path

    with repeatable_path(path) as local:
        yield _Place(Path(local))


def _is_spool(path: str) -> bool:
    """Return whether a path is a spool, and not a directory that contains Stormlog's recordings."""
    from ...core.spool.paths import find_spool

    try:
        return path != STANDARD and Path(path).is_dir() and bool(find_spool(path))
    except InputError:
        return False


def _ignore(finding: ReadingProblem) -> None:
    """Ignore a finding of a pass; the conversion has reported it."""


@click.command(short_help="List the sessions of a recording.")
@_path_argument
@json_option
def sessions(path: str, as_json: bool) -> int:
    """List the sessions of recordings: status, time, identity and events.

    The default session is marked with *. Exit code 1 if a part of the recording was skipped.
    """
    from ...core.importers.stormlog.ledger import SessionLedger
    from ...core.importers.stormlog.reading import StormlogReader

    findings = _Findings()
    with _local(path, findings) as place:
        reader = StormlogReader(place.path, on_finding=findings.add)
        ledger = SessionLedger(reader.artifacts, place.path.name or str(place.path.resolve()))
        for record in reader.records():
            ledger.add(record.event or {}, record.artifact, record.file.name)
    found, default = ledger.sessions(), ledger.default()
    if as_json:
        output.document(
            {
                "default_session": None if default is None else default.session_id,
                "sessions": [session.to_json() for session in found],
            }
        )
    elif found:
        rows = [_session_row(session, session is default) for session in found]
        output.show(rows_table(_SESSION_HEADS, {"duration", "events"}, rows))
    else:
        output.result(f"{printable(path)}: no session")
    return findings.report()


_SESSION_HEADS = ("", "session", "status", "start", "duration", "rank", "pid", "host", "events")


def _session_row(session: CaptureSession, is_default: bool) -> tuple[str, ...]:
    summary = session.summary
    end = summary.ended_at_ns
    if end is None:
        end = max(session.last_ns.values(), default=None)
    return (
        "*" if is_default else "",
        printable(session.session_id),
        summary.status,
        local_moment(summary.started_at_ns),
        "?" if end is None else duration(end - summary.started_at_ns),
        f"{summary.rank} of {summary.world_size}",
        str(summary.pid),
        printable(summary.host),
        f"{session.event_count:,}",
    )


@click.command(short_help="Show phases, alerts and other landmarks.")
@_path_argument
@click.option("--session", "session_id", metavar="ID", help="Only this session.")
@json_option
def timeline(path: str, session_id: str | None, as_json: bool) -> int:
    """Show the markers of each session, and the phases to which samples and alerts belong.

    Exit code 1 if a part of the recording was skipped, 3 if there is no such session.
    """
    from ...core.importers.stormlog.loading import SessionNotFoundError
    from ...core.importers.stormlog.reading import StormlogReader
    from ...core.importers.stormlog.session_timelines import session_timelines

    findings = _Findings()
    with _local(path, findings) as place:
        reader = StormlogReader(place.path, on_finding=findings.add)
        timelines = session_timelines(reader, session_id, place.annotations())
    if session_id is not None and not timelines:
        raise SessionNotFoundError(path, session_id)
    if as_json:
        output.document({"sessions": [each.to_json() for each in timelines]})
    else:
        for each in timelines:
            _show_timeline(each)
        if not timelines:
            output.result(f"{printable(path)}: no session")
    return findings.report()


def _show_timeline(found: SessionTimeline) -> None:
    summary = found.session.summary
    output.result(
        f"{printable(summary.session_id)}  {summary.status},"
        f" {count(found.session.event_count, 'event')},"
        f" from {local_moment(summary.started_at_ns)}"
    )
    rows: list[tuple[str, ...]] = [
        (
            duration(marker.start_ns - summary.started_at_ns),
            str(marker.rank),
            marker.kind,
            marker.severity,
            "" if marker.end_ns is None else duration(marker.end_ns - marker.start_ns),
            printable(marker.label),
        )
        for marker in found.markers()
    ]
    if rows:
        output.show(rows_table(_MARKER_HEADS, {"time", "duration"}, rows))
    sources = Counter(
        "outside any phase" if attribution is None else attribution.source or "ambiguous"
        for _, attribution in found.attribution()
    )
    if sources:
        parts = ", ".join(f"{number:,} {name}" for name, number in sorted(sources.items()))
        output.result(f"samples and alerts: {parts}")
    output.result("")


_MARKER_HEADS = ("time", "rank", "kind", "severity", "duration", "label")


@click.command(short_help="Check the records strictly.")
@_path_argument
@json_option
def verify(path: str, as_json: bool) -> int:
    """Check every record strictly against its schema; exit code 1 if there are errors.

    Notes, such as a torn last line, are listed too; they are not errors.
    """
    from ...core.importers.stormlog.strict import verify_recording

    errors = notes = 0
    listed: list[ReadingProblem] = []
    findings = _Findings()
    with _local(path, findings) as place:
        for finding in chain(findings.listed, verify_recording(place.path)):
            if finding.severity == "error":
                errors += 1
            else:
                notes += 1
            if not as_json:
                output.result(printable(str(finding)))
            elif len(listed) < _MAX_IN_DOCUMENT:
                listed.append(finding)
    if as_json:
        output.document(
            {
                "path": path,
                "errors": errors,
                "notes": notes,
                "findings": [finding.to_json() for finding in listed],
                "findings_left_out": errors + notes - len(listed),
            }
        )
    else:
        output.result(f"{printable(path)}: {count(errors, 'error')}, {count(notes, 'note')}")
    return 1 if errors else 0


class _Findings:
    """The findings of a pass: the first ones, and their number."""

    def __init__(self) -> None:
        self.listed: list[ReadingProblem] = []
        self._count = 0

    def add(self, finding: ReadingProblem) -> None:
        self._count += 1
        if len(self.listed) < _MAX_IN_DOCUMENT:
            self.listed.append(finding)

    def report(self) -> int:
        """Write the findings to stderr, and return the command's exit code."""
        output.skipped(self.listed, self._count)
        return 1 if self._count else 0


@click.group(short_help="Inspect Stormlog's recordings.")
def stormlog() -> None:
    """Inspect recordings of Stormlog, which `convert` and `export` read as stormlog:PATH.

    PATH is a JSON export, a telemetry sink or its manifest, a segment, an OOM or diagnose bundle,
    a directory that contains several of these, or - for standard input. A spool is inspected in the
    form in which `convert` writes it for Stormlog.
    """


for _command in (sessions, timeline, verify):
    stormlog.add_command(_command)
