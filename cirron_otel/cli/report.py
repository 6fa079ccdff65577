"""`cirron-otel report`: what a run spent its time on."""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import UsageError
from . import output
from .parameters import DEFAULT_SPOOL, from_option, json_option
from .sources import as_spool, shown_source
from .tables import breakdown_table, rows_table
from .text import count, duration, moment, printable, value_text

if TYPE_CHECKING:
    from rich.table import Table

    from ..spool.index import SpoolIndex
    from ..spool.reader import SpoolReader
    from ..spool.run_report import GpuTime, MarkSeries, RankReport, RunReport, SlowStep
    from .sources import SpoolOf

_MOST_ASKED = 20


@click.command(short_help="What a run spent its time on.")
@click.argument("source", metavar="[SRC]", default=DEFAULT_SPOOL)
@from_option
@click.option(
    "--slowest",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="How many of the slowest steps are listed.",
)
@click.option(
    "--perfetto",
    "trace_file",
    metavar="FILE",
    help="Also write the run to FILE, for ui.perfetto.dev to open.",
)
@click.option(
    "--html",
    "page_file",
    metavar="FILE",
    help="Also write the report to FILE, as a page that needs no network.",
)
@click.option(
    "--span",
    "spans",
    multiple=True,
    metavar="ID",
    help="With --html: show this step, or any scope, as well. Can be given several times.",
)
@json_option
def report(
    source: str,
    source_format: str | None,
    slowest: int,
    trace_file: str | None,
    page_file: str | None,
    spans: tuple[str, ...],
    as_json: bool,
) -> int:
    """The steps of each rank by phase, the slowest steps, and the marks, of all that SRC holds.

    SRC is whatever `convert` reads: a spool (default: .cirron), a batch, an OTLP file, a
    storage's URL, or - for stdin.
    """
    from ..spool.reader import SpoolReader
    from ..spool.run_report import report_run, run_index

    _check_files({"--perfetto": trace_file, "--html": page_file}, source)
    if len(spans) > (0 if page_file is None else _MOST_ASKED):
        raise UsageError(f"--span: it goes with --html, {_MOST_ASKED} times at most")
    with as_spool(source, source_format) as place:
        reader = SpoolReader(place.directory)
        with run_index(reader) as index:
            found = report_run(index, slowest)
            if trace_file is not None:
                _write_trace(index, trace_file)
            if page_file is not None:
                _write_page(page_file, found, index, (source, place, reader, spans))
    if as_json:
        findings = [finding.to_json() for finding in place.findings(reader)]
        output.document({"source": shown_source(source), **found.to_json(), "findings": findings})
    else:
        _show(shown_source(source), found)
    return place.told(reader)


def _check_files(files: dict[str, str | None], source: str) -> None:
    """Raises UsageError where a file would take the place of what is read, or of another one."""
    given = {option: path for option, path in files.items() if path is not None}
    for option, path in given.items():
        _check_file(option, path, source)
    if len({os.path.realpath(path) for path in given.values()}) < len(given):
        raise UsageError(f"{' and '.join(given)} name the same file: expected one for each")


def _check_file(option: str, path: str, source: str) -> None:
    """Raises UsageError where the file would take the place of what is read, or lie among it."""
    if path in ("", "-"):
        raise UsageError(f"{option} {path!r}: expected the name of a file")
    file, read = Path(path), _file_of(source)
    if file.exists() and read.exists() and file.samefile(read):
        raise UsageError(f"{option} {path} is SRC itself: name another file")
    spools = (read, read / "spool", read / ".cirron" / "spool", read.parent)
    folder = file.resolve().parent
    if any(each.is_dir() and each.name == "spool" and folder == each.resolve() for each in spools):
        raise UsageError(f"{option} {path} would lie among the batches: name a file elsewhere")


def _file_of(source: str) -> Path:
    """Where a source lies: what its URL names, for a storage in a file."""
    from ..storage.url import is_storage_url, parse_url

    named = parse_url(source).path if is_storage_url(source) else None
    return named if named is not None else Path(source)


def _write_trace(index: SpoolIndex, path: str) -> None:
    from ..otlp.replacing import replacing
    from ..spool.perfetto import trace_events

    with replacing(path) as file:
        for piece in trace_events(index):
            file.write(piece.encode("ascii"))
    output.message(f"{path} is written: open it in https://ui.perfetto.dev, which keeps it local")


def _write_page(
    path: str,
    found: RunReport,
    index: SpoolIndex,
    run: tuple[str, SpoolOf, SpoolReader, tuple[str, ...]],
) -> None:
    from ..otlp.replacing import replacing
    from .page.content import gather
    from .page.document import document

    source, place, reader, asked = run
    shown = shown_source(source)
    content = gather(shown, found, index, reader, asked, place.shortfalls(), place.findings(reader))
    with replacing(path) as file:
        for piece in document(content):
            file.write(piece.encode())
    output.message(f"{path} is written: open it in a browser")


def _show(source: str, found: RunReport) -> None:
    # What states no rank is no rank beside some that do: it ran them.
    stated = sum(each.rank is not None for each in found.ranks)
    ranks = count(stated or len(found.ranks), "rank")
    output.result(f"{printable(source)}: {count(found.spans, 'span')} of {ranks}")
    for each in found.ranks:
        output.result("\n" + _heading(each))
        if each.steps.steps.durations:
            output.result("")
            output.show(breakdown_table(each.steps))
    if found.slowest_steps:
        output.result("\nThe slowest steps:\n")
        output.show(_slowest(found.slowest_steps))
    if found.gpu:
        output.result("\nOn the GPU:\n")
        output.show(_gpu(found.gpu))
    if found.marks:
        output.result("\nMarks:\n")
        output.show(_marks(found.marks))
    if found.marks_left_out:
        output.result(f"and {found.marks_left_out:,} more series of marks")


def _heading(each: RankReport) -> str:
    steps = each.steps.steps
    who = "no rank" if each.rank is None else f"rank {each.rank}"
    began = f"{moment(each.first_ns)} UTC, " if each.first_ns is not None else ""
    took = f"{began}{duration(each.run_ns)}"
    if not steps.durations:
        return f"{who}: {took}; no steps"
    share = f" ({100 * steps.total_ns / each.run_ns:.1f} %)" if each.run_ns else ""
    done = f"{count(len(steps.durations), 'step')} took {duration(steps.total_ns)}{share}"
    return f"{who}: {took}, of which {done}"


def _slowest(steps: list[SlowStep]) -> Table:
    heads = ("rank", "epoch", "step", "start (UTC)", "duration", "most of it in", "span")
    return rows_table(heads, {"rank", "epoch", "step", "duration"}, [
        (
            "-" if each.rank is None else str(each.rank),
            each.epoch if each.epoch is not None else "-",
            each.index if each.index is not None else "-",
            moment(each.start_ns),
            duration(each.duration_ns),
            _most(each),
            each.span_id if each.span_id is not None else "-",
        )
        for each in steps
    ])  # fmt: skip


def _most(step: SlowStep) -> str:
    rest = step.duration_ns - sum(step.phases.values())
    name, ns = max([*step.phases.items(), ("unattributed", rest)], key=lambda part: part[1])
    return f"{name}, {duration(ns)}"


def _gpu(times: list[GpuTime]) -> Table:
    heads = ("scope", "rank", "times", "on the GPU", "on the host")
    return rows_table(heads, set(heads[1:]), [
        (
            each.name,
            "-" if each.rank is None else str(each.rank),
            f"{each.count:,}",
            duration(each.gpu_ns),
            duration(each.wall_ns),
        )
        for each in times
    ])  # fmt: skip


def _marks(marks: list[MarkSeries]) -> Table:
    heads = ("mark", "rank", "times", "first", "last", "min", "max")
    return rows_table(heads, set(heads[2:]), [
        (
            each.name,
            "-" if each.rank is None else str(each.rank),
            f"{each.count:,}",
            *(value_text(value) for value in (each.first, each.last)),
            *("-" if value is None else f"{value:.6g}" for value in (each.min, each.max)),
        )
        for each in marks
    ])  # fmt: skip
