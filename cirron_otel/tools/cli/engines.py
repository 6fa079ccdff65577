"""`--engine`: the engine that aggregates the steps of a report."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...errors import UsageError
from . import output
from .runs import report_chosen
from .sources import OpenedSource

if TYPE_CHECKING:
    from ...core.analysis.run_report import RunReport
    from ...core.analysis.run_selection import ChosenRun
    from ...core.engines.source import OpenedRun
    from ...core.records.findings import Finding

PYTHON, DUCKDB = "python", "duckdb"
_PARQUET = "parquet"

engine_option: Callable[[Any], Any] = click.option(
    "--engine",
    type=click.Choice((PYTHON, DUCKDB)),
    default=PYTHON,
    show_default=True,
    help="What computes the report of a spool, or of parquet:DIR; the figures are the same.",
)


class EngineReport(NamedTuple):
    """The report of a run that an engine has computed."""

    report: RunReport
    chosen: ChosenRun
    findings: list[Finding]
    code: int
    """The exit code, 0 or 1, after the files of a spool that cannot be read are reported."""


def engine_report(
    source: str, source_format: str | None, wanted: str | None, slowest: int, *, is_text: bool
) -> EngineReport | None:
    """Return the report by DuckDB; None, with a message, if the run needs Python.

    A report that is shown as text has the steps of all ranks together.

    Raises UsageError for another source, and the errors of reading it.
    """
    from ...core.engines.extra import require
    from ..convert.formats import source_place
    from ..convert.tables import SOURCES

    place = source_place(source, source_format)
    is_spool = SOURCES[place.format].is_spool
    if not is_spool and place.format != _PARQUET:
        raise UsageError(
            f"--engine {DUCKDB} reads a spool, or columnar tables: convert {source} to"
            " parquet:DIR first"
        )
    require()
    from ...core.engines.unsupported import NeedsPythonError

    try:
        compute = _of_spool if is_spool else _of_tables
        return compute(place.path, wanted, slowest, is_text=is_text)
    except NeedsPythonError as reason:
        output.message(f"note: {reason}; --engine {PYTHON} computes the report")
        return None


def _of_spool(path: str, wanted: str | None, slowest: int, *, is_text: bool) -> EngineReport:
    from ...core.engines.cache import cached_batches
    from ...core.engines.source import opened_run
    from ...core.spool.reader import SpoolReader

    reader = SpoolReader(path)
    with output.progress("reading"):
        batches = cached_batches(reader)
    with opened_run(batches, wanted, reader.paths) as run:
        report_chosen(run.chosen, wanted)
        report = _report_of(run, slowest, is_text=is_text)
    code = OpenedSource(path).report_problems(reader)
    return EngineReport(report, run.chosen, list(reader.findings), code)


def _of_tables(path: str, wanted: str | None, slowest: int, *, is_text: bool) -> EngineReport:
    from ...core.engines.columnar_batches import ColumnarBatches
    from ...core.engines.source import opened_run

    with opened_run(ColumnarBatches(Path(path)), wanted) as run:
        report_chosen(run.chosen, wanted)
        report = _report_of(run, slowest, is_text=is_text)
        return EngineReport(report, run.chosen, [], 0)


def _report_of(run: OpenedRun, slowest: int, *, is_text: bool) -> RunReport:
    from ...core.engines.engine_report import report_of
    from ...core.engines.run_times import steps_of_all

    report = report_of(run, slowest)
    if is_text:
        report.together = steps_of_all(run.engine, run.relations, report.ranks)
    return report
