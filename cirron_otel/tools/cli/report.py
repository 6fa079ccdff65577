"""`cirron-otel report`: the conclusion on a run, and how it spent its time."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...core.spool.directories import DEFAULT_NAME
from ...errors import UsageError
from . import output
from .engines import PYTHON, EngineSource, computed_by, engine_option
from .failing import FAILED_VERDICT, conditions_of, fail_on_options, severity_of
from .parameters import (
    PlacesCommand,
    account_option,
    from_option,
    ignore_option,
    json_option,
    price_option,
    rules_option,
    run_option,
    set_option,
    unit_option,
)
from .progress import progress
from .runs import report_chosen
from .sources import as_spool, shown_source
from .written_files import check_files, write_page

if TYPE_CHECKING:
    from ...core.engines.source import OpenedTables
    from ...core.run.findings.choices import Choices
    from ...core.run.load.scopes import Scopes
    from ...core.run.run import Run
    from ...core.spool.reader import SpoolReader
    from ..present.document import Document
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
    help="The number of slowest units to list, with --full.",
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
@click.option(
    "--full",
    is_flag=True,
    help="Also show the slowest units, the device times, the memory, the metrics and the marks.",
)
@unit_option
@rules_option
@set_option
@account_option
@ignore_option
@price_option
@fail_on_options
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
    full: bool,
    unit: str | None,
    rules: str | None,
    settings: tuple[str, ...],
    accounts: tuple[str, ...],
    ignored: tuple[str, ...],
    price: str | None,
    fail_on: tuple[str, ...],
    baseline: str | None,
    no_pager: bool,
    as_json: bool,
) -> int:
    """Show the conclusion on one run: its findings, and the accounts of its time.

    SRC is .cirron by default; - is stdin. The last run is reported, unless --run names another.
    """
    from ...core.run.choosing import open_chosen_run
    from ...core.run.findings.choices import choices_of
    from ...core.run.load.scopes import Scopes
    from ...core.spool.reader import SpoolReader
    from ..present.conclude import add_skipped, document_of_run
    from ..present.conclusion_file import write_conclusion

    check_files({"--perfetto": trace_file, "--html": page_file}, source)
    named = EngineSource(source, source_format, run)
    if rules is not None:
        if (trace_file, page_file, full) != (None, None, False):
            raise UsageError("--rules cannot be combined with --perfetto, --html and --full")
        if accounts or ignored or (price, baseline) != (None, None):
            raise UsageError(
                "--rules cannot be combined with --account, --ignore, --price and --baseline"
            )
        return _verdicts(engine, named, settings, unit, severity_of(fail_on), as_json=as_json)
    choices = choices_of(settings, ignored, accounts, price)
    if len(spans) > (0 if page_file is None else _MOST_ASKED):
        raise UsageError(f"--span needs --html, and can be given at most {_MOST_ASKED} times")
    conditions = conditions_of(fail_on, baseline, named, choices, unit)
    if engine != PYTHON:
        if (trace_file, page_file) != (None, None):
            raise UsageError(f"--perfetto and --html need --engine {PYTHON}")
        if unit is not None:
            raise UsageError(f"--unit needs --engine {PYTHON}")
        computed = _by_engine(engine, named, slowest, choices)
        if computed is not None:
            found = computed.value
            add_skipped(found, computed.findings)
            _show(found, full=full, as_json=as_json, no_pager=no_pager)
            code = max(computed.report_problems(), _drops(found))
            return conditions.code([found], code)
    with progress("reading") as shown, as_spool(source, source_format, run) as place:
        shown.stage("reading batches", then="reporting")
        reader = SpoolReader(place.directory, on_progress=shown)
        with open_chosen_run(
            reader, run, slowest=slowest, unit=unit, accounts=choices.accounts
        ) as (chosen, opened):
            report_chosen(chosen, run)
            found = document_of_run(
                shown_source(source),
                opened,
                chosen,
                reader=reader,
                choices=choices,
                missing_files=place.unconverted,
            )
            if (trace_file, page_file) != (None, None):
                scopes = Scopes(reader, once=True)
            if trace_file is not None:
                _write_trace(scopes, trace_file)
            if page_file is not None:
                of_run = source, place, reader, spans
                _write_page(page_file, found, opened, scopes, of_run)
            is_default = choices.is_default and unit is None
            if is_default and place.converted is None and chosen.run is not None:
                write_conclusion(reader.paths, found, chosen.run.batches)
    add_skipped(found, place.findings(reader))
    _show(found, full=full, as_json=as_json, no_pager=no_pager)
    code = max(place.report_problems(reader), _drops(found))
    return conditions.code([found], code)


def _verdicts(
    engine: str,
    source: EngineSource,
    settings: tuple[str, ...],
    unit: str | None,
    fail_on: str | None,
    *,
    as_json: bool,
) -> int:
    """Write the verdicts by the rules of TraceML; return the exit code."""
    from ...core.analysis.verdicts.thresholds import thresholds_of
    from .diagnose_traceml import show_verdicts

    limits = thresholds_of("run", settings)
    has_failed, code = show_verdicts(source, engine, limits, unit, fail_on=fail_on, as_json=as_json)
    return FAILED_VERDICT if has_failed else code


def _by_engine(
    engine: str, source: EngineSource, slowest: int, choices: Choices
) -> EngineResult[Document] | None:
    """Return the document of the chosen run; None, with a message, if the run needs Python."""

    def compute(tables: OpenedTables, wanted: str | None) -> Document:
        from ...core.run.engines.opening import engine_run
        from ..present.conclude import document_of_run

        with tables.run(*tables.choose(wanted)) as run:
            report_chosen(run.chosen, wanted)
            opened = engine_run(run, slowest, choices.accounts)
            return document_of_run(shown_source(source.name), opened, run.chosen, choices=choices)

    computed = computed_by(engine, [source], compute, "report")
    return None if computed is None else computed[0]


def _show(document: Document, *, full: bool, as_json: bool, no_pager: bool) -> None:
    from ..present.text import document_parts
    from .pager import paged

    if as_json:
        output.document(document.to_json())
    else:
        with paged(is_wanted=not no_pager):
            output.show_parts(document_parts(document, full=full))


def _drops(document: Document) -> int:
    """Warn about records that the recording processes dropped; return the exit code, 0 or 1."""
    for each in document.skipped:
        if each.code == "dropped":
            output.message(f"warning: {each.message}")
    return 1 if document.figures.drops else 0


def _write_trace(scopes: Scopes, path: str) -> None:
    from ...core.otlp.replacing import replacing
    from ...core.run.perfetto import trace_events

    with replacing(path) as file:
        for piece in trace_events(scopes):
            file.write(piece.encode("ascii"))
    output.message(f"{path} is written: open it in https://ui.perfetto.dev, which keeps it local")


def _write_page(
    path: str,
    found: Document,
    opened: Run,
    scopes: Scopes,
    run: tuple[str, OpenedSource, SpoolReader, tuple[str, ...]],
) -> None:
    from .page.content import gather
    from .page.document import document

    _, place, reader, span_ids = run
    content = gather(
        found, opened, scopes, reader, span_ids, place.shortfalls(), place.findings(reader)
    )
    write_page(path, document(content))
