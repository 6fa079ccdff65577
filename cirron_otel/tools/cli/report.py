"""`cirron-otel report`: how a run spent its time."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...core.spool.directories import DEFAULT_NAME
from ...errors import UsageError
from . import output
from .engines import PYTHON, EngineSource, computed_by, engine_option
from .parameters import PlacesCommand, from_option, json_option, run_option, unit_option
from .progress import progress
from .runs import report_chosen, run_json
from .sources import as_spool, shown_source

if TYPE_CHECKING:
    from ...core.analysis.run_report import Drop, RunReport
    from ...core.analysis.run_selection import ChosenRun
    from ...core.engines.source import OpenedTables
    from ...core.records.findings import Finding
    from ...core.run.load.scopes import Scopes
    from ...core.run.run import Run
    from ...core.spool.reader import SpoolReader
    from .engines import EngineResult
    from .sources import OpenedSource

_MOST_ASKED = 20


@click.command(cls=PlacesCommand, short_help="Show what a run spent its time on.")
@click.argument("source", metavar="[SRC]", default=DEFAULT_NAME)
@from_option
@run_option
@engine_option
@click.option(
    "--slowest",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="The number of slowest steps to list.",
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
@unit_option
@click.option("--no-pager", is_flag=True, help="Do not use a pager on a terminal.")
@json_option
def report(
    source: str,
    source_format: str | None,
    run: str | None,
    engine: str,
    slowest: int,
    trace_file: str | None,
    page_file: str | None,
    spans: tuple[str, ...],
    unit: str | None,
    no_pager: bool,
    as_json: bool,
) -> int:
    """Show the steps of each rank by phase, the slowest steps, and the marks of one run.

    SRC is .cirron by default; - is stdin. The last run is reported, unless --run names another.
    """
    from ...core.run.choosing import open_chosen_run
    from ...core.run.load.scopes import Scopes
    from ...core.run.report import report_of
    from ...core.spool.reader import SpoolReader

    _check_files({"--perfetto": trace_file, "--html": page_file}, source)
    if len(spans) > (0 if page_file is None else _MOST_ASKED):
        raise UsageError(f"--span needs --html, and can be given at most {_MOST_ASKED} times")
    if engine != PYTHON:
        if (trace_file, page_file) != (None, None):
            raise UsageError(f"--perfetto and --html need --engine {PYTHON}")
        if unit is not None:
            raise UsageError(f"--unit needs --engine {PYTHON}")
        computed = _by_engine(engine, EngineSource(source, source_format, run), slowest)
        if computed is not None:
            chosen, found = computed.value
            report_chosen(chosen, run)
            _show(source, found, chosen, computed.findings, as_json=as_json, no_pager=no_pager)
            return max(computed.report_problems(), _drops(found))
    with progress("reading") as shown, as_spool(source, source_format, run) as place:
        shown.stage("reading batches", then="reporting")
        reader = SpoolReader(place.directory, on_progress=shown)
        with open_chosen_run(reader, run, slowest=slowest, unit=unit) as (chosen, opened):
            report_chosen(chosen, run)
            run_report = report_of(opened)
            if (trace_file, page_file) != (None, None):
                scopes = Scopes(reader, once=True)
            if trace_file is not None:
                _write_trace(scopes, trace_file)
            if page_file is not None:
                of_run = source, place, reader, spans
                _write_page(page_file, run_report, opened, scopes, of_run, chosen)
    findings = place.findings(reader)
    _show(source, run_report, chosen, findings, as_json=as_json, no_pager=no_pager)
    return max(place.report_problems(reader), _drops(run_report))


def _by_engine(
    engine: str, source: EngineSource, slowest: int
) -> EngineResult[tuple[ChosenRun, RunReport]] | None:
    """Return the chosen run and its report; None, with a message, if the run needs Python."""

    def compute(tables: OpenedTables, wanted: str | None) -> tuple[ChosenRun, RunReport]:
        from ...core.run.engines.opening import engine_run
        from ...core.run.report import report_of

        with tables.run(*tables.choose(wanted)) as run:
            return run.chosen, report_of(engine_run(run, slowest))

    computed = computed_by(engine, [source], compute, "report")
    return None if computed is None else computed[0]


def _show(
    source: str,
    found: RunReport,
    chosen: ChosenRun,
    findings: list[Finding],
    *,
    as_json: bool,
    no_pager: bool,
) -> None:
    from .pager import paged
    from .report_text import show_report

    if as_json:
        output.document({
            "source": shown_source(source),
            "run": run_json(chosen),
            **found.to_json(),
            "findings": [each.to_json() for each in (*findings, *map(_finding, found.drops))],
        })  # fmt: skip
    else:
        with paged(is_wanted=not no_pager):
            show_report(shown_source(source), found)


def _finding(drop: Drop) -> Finding:
    from ...core.records.findings import Finding

    rank = "" if drop.rank is None else f" by rank {drop.rank}"
    return Finding("", "dropped", f"{drop.count:,} {drop.reason} dropped while recording{rank}")


def _drops(found: RunReport) -> int:
    """Warn about records that the recording processes dropped; return the exit code, 0 or 1."""
    for each in found.drops:
        output.message(f"warning: {_finding(each).message}")
    return 1 if found.drops else 0


def _check_files(files: dict[str, str | None], source: str) -> None:
    """Raise UsageError if a file would overwrite the source or another file."""
    paths = {option: path for option, path in files.items() if path is not None}
    for option, path in paths.items():
        _check_file(option, path, source)
    if len({os.path.realpath(path) for path in paths.values()}) < len(paths):
        raise UsageError(f"{' and '.join(paths)} name the same file: expected one for each")


def _check_file(option: str, path: str, source: str) -> None:
    """Raise UsageError if the file would overwrite the source, or be in the directory of its
    batches.
    """
    if path in ("", "-"):
        raise UsageError(f"{option} {path!r}: expected the name of a file")
    file, read = Path(path), _file_of(source)
    if file.exists() and read.exists() and file.samefile(read):
        raise UsageError(f"{option} {path} is SRC itself: name another file")
    spools = (read, read / "spool", read / ".cirron" / "spool", read.parent)
    folder = file.resolve().parent
    if any(each.is_dir() and each.name == "spool" and folder == each.resolve() for each in spools):
        raise UsageError(f"{option} {path} would be among the batches: name a file elsewhere")


def _file_of(source: str) -> Path:
    """Return the path of a source; for a database in a file, the path in its URL."""
    from ..convert.tables import location_of

    return location_of(source).path or Path(source)


def _write_trace(scopes: Scopes, path: str) -> None:
    from ...core.otlp.replacing import replacing
    from ...core.run.perfetto import trace_events

    with replacing(path) as file:
        for piece in trace_events(scopes):
            file.write(piece.encode("ascii"))
    output.message(f"{path} is written: open it in https://ui.perfetto.dev, which keeps it local")


def _write_page(
    path: str,
    found: RunReport,
    opened: Run,
    scopes: Scopes,
    run: tuple[str, OpenedSource, SpoolReader, tuple[str, ...]],
    chosen: ChosenRun,
) -> None:
    from ...core.otlp.replacing import replacing
    from .page.content import gather
    from .page.document import document

    source, place, reader, span_ids = run
    shown = shown_source(source)
    name = None if chosen.run is None else chosen.run.name
    content = gather(
        shown, found, opened, scopes, reader, span_ids, place.shortfalls(), place.findings(reader),
        name,
    )  # fmt: skip
    with replacing(path) as file:
        for piece in document(content):
            file.write(piece.encode())
    output.message(f"{path} is written: open it in a browser")
