"""`--engine`: the engine that aggregates the steps of a report."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...errors import EndpointError, UsageError
from . import output
from .runs import report_chosen
from .sources import OpenedSource

if TYPE_CHECKING:
    from ...core.analysis.run_report import RunReport
    from ...core.analysis.run_selection import ChosenRun
    from ...core.engines.source import Connect, OpenedRun
    from ...core.records.findings import Finding

PYTHON, DUCKDB = "python", "duckdb"
_POSTGRES = ("postgresql://", "postgres://")
_SPARK = "spark://"
_PARQUET = "parquet"
_CONNECT_S = 10.0


class _Engine(click.ParamType):  # type: ignore[type-arg]
    """The name of an engine, or the URL of its server, which messages do not repeat."""

    name = "engine"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in (PYTHON, DUCKDB) and not value.startswith((*_POSTGRES, _SPARK)):
            self.fail(
                f"expected {PYTHON}, {DUCKDB}, {_POSTGRES[0]}HOST/DATABASE or {_SPARK}HOST:PORT",
                param, ctx,
            )  # fmt: skip
        return value


engine_option: Callable[[Any], Any] = click.option(
    "--engine",
    type=_Engine(),
    default=PYTHON,
    show_default=True,
    metavar="ENGINE",
    help="What computes the report of a spool, or of parquet:DIR: python, duckdb,"
    " postgresql://HOST/DATABASE or spark://HOST:PORT; the figures are the same.",
)


class EngineReport(NamedTuple):
    """The report of a run that an engine has computed."""

    report: RunReport
    chosen: ChosenRun
    findings: list[Finding]
    code: int
    """The exit code, 0 or 1, after the files of a spool that cannot be read are reported."""


def engine_report(
    engine: str,
    source: str,
    source_format: str | None,
    wanted: str | None,
    slowest: int,
    *,
    is_text: bool,
) -> EngineReport | None:
    """Return the report by an engine; None, with a message, if the run needs Python.

    A report that is shown as text has the steps of all ranks together.

    Raises UsageError for another source, and the errors of reading it and of the engine.
    """
    from ...core.engines.extra import require
    from ..convert.formats import source_place
    from ..convert.tables import SOURCES

    place = source_place(source, source_format)
    is_spool = SOURCES[place.format].is_spool
    if not is_spool and place.format != _PARQUET:
        raise UsageError(
            f"--engine {_shown(engine)} reads a spool, or columnar tables: convert {source} to"
            " parquet:DIR first"
        )
    require(_shown(engine))
    from ...core.engines.unsupported import NeedsPythonError

    read = _of_spool if is_spool else _of_tables
    try:
        with _connecting(engine) as connect:
            return read(place.path, wanted, slowest, connect, is_text=is_text)
    except NeedsPythonError as reason:
        output.message(f"note: {reason}; --engine {PYTHON} computes the report")
        return None


def _shown(engine: str) -> str:
    """Return an engine without the address of its server."""
    return f"{engine.partition('://')[0]}://" if "://" in engine else engine


@contextlib.contextmanager
def _connecting(engine: str) -> Iterator[Connect | None]:
    """Yield the function that connects to an engine; None for DuckDB."""
    if engine.startswith(_POSTGRES):
        from ...core.engines.postgres_engine import postgres

        yield postgres(engine)
    elif engine.startswith(_SPARK):
        from ...core.engines.spark_engine import masters_of, spark, spark_session
        from ...core.temporary import temporary_folder

        _check_reachable(engine, masters_of(engine))
        with temporary_folder() as folder, spark_session(engine, Path(folder)) as session:
            yield spark(session)
    else:
        yield None


def _check_reachable(url: str, masters: list[tuple[str, int]]) -> None:
    """Raise EndpointError if no master accepts a connection: Spark would try for a minute."""
    for number, address in enumerate(masters, 1):
        try:
            socket.create_connection(address, _CONNECT_S).close()
        except OSError as error:
            if number == len(masters):
                raise EndpointError(
                    f"{url} cannot be reached: {error.strerror or error}; check the host and the"
                    " port of the master"
                ) from None
        else:
            return


def _of_spool(
    path: str, wanted: str | None, slowest: int, connect: Connect | None, *, is_text: bool
) -> EngineReport:
    from ...core.engines.cache import cached_batches
    from ...core.engines.source import opened_run
    from ...core.spool.reader import SpoolReader

    reader = SpoolReader(path)
    with output.progress("reading"):
        batches = cached_batches(reader)
    with opened_run(batches, wanted, reader.paths, connect) as run:
        report_chosen(run.chosen, wanted)
        report = _report_of(run, slowest, is_text=is_text)
    code = OpenedSource(path).report_problems(reader)
    return EngineReport(report, run.chosen, list(reader.findings), code)


def _of_tables(
    path: str, wanted: str | None, slowest: int, connect: Connect | None, *, is_text: bool
) -> EngineReport:
    from ...core.engines.columnar_batches import ColumnarBatches
    from ...core.engines.source import opened_run

    with opened_run(ColumnarBatches(Path(path)), wanted, None, connect) as run:
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
